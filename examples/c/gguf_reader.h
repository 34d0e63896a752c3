/* A reader of GGUF files as many programs have one: on stdio, and knowing nothing of Longshore. */
#ifndef GGUF_READER_H
#define GGUF_READER_H

#include <stdio.h>

/*
 * Reads the model in file from its beginning and prints its metadata and tensors to out, each tensor
 * with a checksum of its data (FNV-1a of 64 bits). Returns 0, or prints to stderr what is wrong with
 * it, after name, and returns -1.
 */
int gguf_print(FILE *file, const char *name, FILE *out);

#endif
