/*
 * Longshore: files into device-shareable memory at the disk's speed.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Handles are opaque. The end of a function's name says who owns what it returns: what `_borrow`
 * gives belongs to the handle it came from and lasts as long as that; what `_dup` and `_open` give
 * is the caller's to close; what `longshore_load` and `longshore_attach` give goes to
 * `longshore_buffer_free`, and an error to `longshore_error_free`.
 *
 * A function that can fail returns a `longshore_code`, `LONGSHORE_OK` if it did not, and takes as
 * its last argument where to put a `longshore_error`, or NULL. No function aborts, throws or
 * writes to standard error where an argument is NULL: it fails with `LONGSHORE_INVALID_ARGUMENT`,
 * or returns what its documentation says.
 *
 * Handles are never changed once they are made: any number of threads may use one at once, but for
 * freeing it. Nothing here changes signal handlers, locale or other state of the process; threads
 * that `longshore_load` starts end before it returns. Lengths and offsets are in bytes.
 *
 * Made from bindings/c/src by cbindgen; do not edit.
 */

#ifndef LONGSHORE_H
#define LONGSHORE_H

#include <stddef.h>
#include <stdint.h>

/** The version of this header. That of the library that runs is `longshore_version`. */
#define LONGSHORE_VERSION "0.1.0"
/** The major version of this header. */
#define LONGSHORE_VERSION_MAJOR 0
/** The minor version of this header. While the major one is 0 another means another ABI. */
#define LONGSHORE_VERSION_MINOR 1
/** The patch level of this header. */
#define LONGSHORE_VERSION_PATCH 0
/** The version of this header as one number, so that a later one is greater. */
#define LONGSHORE_VERSION_NUMBER \
    ((LONGSHORE_VERSION_MAJOR << 16) | (LONGSHORE_VERSION_MINOR << 8) | LONGSHORE_VERSION_PATCH)

/** What `longshore_load_options` begin as: nothing is said but the size. */
#define LONGSHORE_LOAD_OPTIONS_INIT \
    {sizeof(longshore_load_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL}

/**
 * For `longshore_buffer_sync`: the CPU is going to load.
 */
#define LONGSHORE_SYNC_READ 1

/**
 * For `longshore_buffer_sync`: the CPU is going to store.
 */
#define LONGSHORE_SYNC_WRITE 2

/**
 * For `longshore_buffer_sync`: the CPU is done with what it said before.
 */
#define LONGSHORE_SYNC_END 4

/**
 * For `verify`: CRC-32C, eight hexadecimal digits.
 */
#define LONGSHORE_VERIFY_CRC32C 1

/**
 * For `verify`: XXH3 of 64 bits with seed 0, sixteen hexadecimal digits.
 */
#define LONGSHORE_VERIFY_XXH3 2

/**
 * For `verify`: SHA-256, 64 hexadecimal digits.
 */
#define LONGSHORE_VERIFY_SHA256 4

/**
 * For `flags`: leave the content writable by whoever has it, instead of sealing it. Heaps that
 * cannot seal their content, `udmabuf` and `dma-heap`, need it.
 */
#define LONGSHORE_LOAD_WRITABLE 1

/**
 * For `flags`: do not use io_uring, even where it may be used.
 */
#define LONGSHORE_LOAD_NO_URING 2

/**
 * For `flags` of `longshore_held`: it is complete, and not still being loaded.
 */
#define LONGSHORE_HELD_READY 1

/**
 * For `flags` of `longshore_held`: the files on the disk are no longer those that were loaded.
 */
#define LONGSHORE_HELD_STALE 2

/**
 * For `flags` of `longshore_held`: it is kept for as long as the server runs.
 */
#define LONGSHORE_HELD_PINNED 4

/**
 * For `page_cache_growth_bytes`: the kernel does not tell.
 */
#define LONGSHORE_UNKNOWN INT64_MIN

/**
 * What a function that can fail returns. More may come.
 */
enum longshore_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * It did not fail.
     */
    LONGSHORE_OK = 0,
    /**
     * An argument is NULL where it must not be, or has a value that means nothing.
     */
    LONGSHORE_INVALID_ARGUMENT = 1,
    /**
     * A file cannot be opened: the error's `errno` says why.
     */
    LONGSHORE_CANNOT_OPEN = 2,
    /**
     * A path leads to a directory, a FIFO, a socket or a device.
     */
    LONGSHORE_NOT_REGULAR = 3,
    /**
     * The disk or file system failed.
     */
    LONGSHORE_READ_FAILED = 4,
    /**
     * A file was written to or cut off while it was read.
     */
    LONGSHORE_FILE_CHANGED = 5,
    /**
     * The content does not fit into memory, or not into the limit that was given.
     */
    LONGSHORE_NO_MEMORY = 6,
    /**
     * The heap or mode asked for does not exist on this machine or for this file, or the heap's
     * content cannot be sealed.
     */
    LONGSHORE_UNAVAILABLE = 7,
    /**
     * The progress callback asked for it.
     */
    LONGSHORE_CANCELLED = 8,
    /**
     * A checksum is not what the manifest says.
     */
    LONGSHORE_MISMATCH = 9,
    /**
     * A file is not of the format it is meant to be of, or a manifest cannot be understood.
     */
    LONGSHORE_BAD_FORMAT = 10,
    /**
     * The buffer has no tensor of that name, or no descriptor of that kind.
     */
    LONGSHORE_NOT_FOUND = 11,
    /**
     * A system call failed, or a resource of the process is exhausted.
     */
    LONGSHORE_SYSTEM = 12,
    /**
     * A fault of Longshore itself. Nothing is left behind; please report it.
     */
    LONGSHORE_INTERNAL = 13,
    /**
     * No server listens, it refuses, is gone, does not answer, or cannot be trusted.
     */
    LONGSHORE_SERVER = 14,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum longshore_code longshore_code;
#else
typedef int32_t longshore_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A filled buffer: memory with a descriptor that devices and other processes can be given. Its
 * content is complete, and verified if that was asked for. Made by `longshore_load` or
 * `longshore_attach`, freed by `longshore_buffer_free`.
 */
typedef struct longshore_buffer longshore_buffer;

/**
 * What went wrong: a code, an `errno` and a message. Made by functions that fail, never changed,
 * and of the caller, who frees it with `longshore_error_free`.
 */
typedef struct longshore_error longshore_error;

/**
 * A file that a buffer was filled from. It belongs to the buffer and lasts as long.
 */
typedef struct longshore_file longshore_file;

/**
 * A tensor in a buffer. It belongs to the buffer and lasts as long.
 */
typedef struct longshore_tensor longshore_tensor;

/**
 * Told how far a load has come: about twenty times a second and once at the end, on the thread
 * that called `longshore_load`. It must return: no exception and no `longjmp` may leave it.
 *
 * @param done_bytes Bytes that are in the buffer.
 * @param total_bytes Bytes that there are to be.
 * @param data The `progress_data` of the options.
 * @return 0 to go on; anything else cancels the load, which then leaves nothing behind.
 */
typedef int (*longshore_progress)(uint64_t done_bytes, uint64_t total_bytes, void *data);

/**
 * How to load. `LONGSHORE_LOAD_OPTIONS_INIT` is what is done where nothing is said: a zero or NULL
 * in any field but `size` means that. Later versions of Longshore add fields at the end; `size`
 * tells the library which the program knows.
 */
typedef struct {
    /**
     * `sizeof(longshore_load_options)`.
     */
    size_t size;
    /**
     * Where the memory comes from: `auto`, `memfd`, `memfd:4k`, `hugetlb`, `udmabuf`, `dma-heap`
     * or `dma-heap:NAME`. `auto` is `memfd`, and `udmabuf` where there is one and the content
     * stays writable.
     */
    const char *heap;
    /**
     * How files are read: `auto`, `direct`, `buffered`, `uncached`.
     */
    const char *mode;
    /**
     * What the files are: `auto`, which goes by their names, or a format's name: `raw`,
     * `safetensors`, `gguf`.
     */
    const char *format;
    /**
     * The path of a manifest: the load fails unless each file has the checksum it names, in the
     * form that `sha256sum` writes.
     */
    const char *manifest;
    /**
     * Place every tensor at a multiple of this while reading: a power of two up to 1 GiB, such as
     * 64. A file whose tensors do not lie so already becomes one in the buffer that has the same
     * tensors and metadata.
     */
    uint64_t align_bytes;
    /**
     * Fail rather than load more than so many bytes.
     */
    uint64_t memory_max_bytes;
    /**
     * How many bytes of pages are made ahead of the reads; 128 MiB where nothing is said.
     */
    uint64_t populate_ahead_bytes;
    /**
     * Which checksums to compute of each file: `LONGSHORE_VERIFY_*`, any number of them or'ed.
     */
    uint32_t verify;
    /**
     * `LONGSHORE_LOAD_*`, any number of them or'ed.
     */
    uint32_t flags;
    /**
     * Called while the load runs.
     */
    longshore_progress progress;
    /**
     * What `progress` is given as its last argument.
     */
    void *progress_data;
} longshore_load_options;

/**
 * A model that a server holds or is loading. Later versions add fields at the end.
 */
typedef struct {
    /**
     * The length of this struct as the library knows it.
     */
    size_t size;
    /**
     * Its number, which `longshore_attach` takes for a name.
     */
    uint64_t id;
    /**
     * The file it was asked for by. Gone when the visitor returns.
     */
    const char *path;
    /**
     * What the file was taken for: `auto`, `raw`, `safetensors`, `gguf`. Gone when the visitor
     * returns.
     */
    const char *format;
    /**
     * Its length in bytes.
     */
    uint64_t len_bytes;
    /**
     * How many of them are there.
     */
    uint64_t done_bytes;
    /**
     * Since when it is held or being loaded, in milliseconds.
     */
    uint64_t age_ms;
    /**
     * How many attachments it has.
     */
    uint32_t attachments;
    /**
     * `LONGSHORE_HELD_*`, any number of them or'ed.
     */
    uint32_t flags;
} longshore_held;

/**
 * Shown what a server holds, one model after the other. It must return: no exception and no
 * `longjmp` may leave it.
 *
 * @param held A model, gone when this returns.
 * @param data What `longshore_ls` was given.
 */
typedef void (*longshore_visit)(const longshore_held *held, void *data);

/**
 * What a load did. Times are in nanoseconds. Later versions add fields at the end; `size` tells
 * the library which the program knows.
 */
typedef struct {
    /**
     * `sizeof(longshore_stats)`, set by the caller.
     */
    size_t size;
    /**
     * Bytes read: all files together, without what lies between them.
     */
    uint64_t content_bytes;
    /**
     * From the call to the finished buffer.
     */
    uint64_t elapsed_ns;
    /**
     * Making pages, summed over the threads that did; most of it overlaps with reading.
     */
    uint64_t allocating_ns;
    /**
     * Reserving and mapping addresses.
     */
    uint64_t mapping_ns;
    /**
     * From the first read to the last.
     */
    uint64_t reading_ns;
    /**
     * Bytes that came from the disk straight into the buffer.
     */
    uint64_t direct_bytes;
    /**
     * Bytes that came from the disk into memory beside the buffer and were copied: of tensors whose
     * place in the buffer the disk cannot write to.
     */
    uint64_t staged_bytes;
    /**
     * Bytes that were in the page cache already.
     */
    uint64_t page_cache_bytes;
    /**
     * Bytes that came through the page cache and left nothing there.
     */
    uint64_t uncached_bytes;
    /**
     * Bytes that came through the page cache and are there now.
     */
    uint64_t buffered_bytes;
    /**
     * By how much the files' share of the page cache grew, negative where it shrank;
     * `LONGSHORE_UNKNOWN` where the kernel does not tell.
     */
    int64_t page_cache_growth_bytes;
    /**
     * Bytes of the buffer in 2 MiB pages of the hugetlb pool.
     */
    uint64_t hugetlb_2m_bytes;
    /**
     * Bytes of the buffer in transparent huge pages of 2 MiB.
     */
    uint64_t huge_2m_bytes;
    /**
     * Bytes of the buffer in pages of 64 KiB or more, below 2 MiB.
     */
    uint64_t mid_64k_bytes;
    /**
     * Bytes of the buffer in smaller pages.
     */
    uint64_t base_bytes;
    /**
     * 1 if io_uring made the direct reads; 0 if threads did, or if there were none.
     */
    uint64_t used_uring;
} longshore_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Frees a buffer: its memory too, unless another descriptor or mapping of it is left. Pointers
 * into it, descriptors borrowed from it, its tensors and its files are gone then. No thread may be
 * using any of them.
 *
 * @param buffer A buffer that is used no more, or NULL.
 */
void longshore_buffer_free(longshore_buffer *buffer);

/**
 * The content of a buffer, mapped into this process. It can be read; it can be written only
 * through `longshore_buffer_data_mut`. Where it is not sealed, whoever has a descriptor may change
 * it meanwhile; where there is a dma-buf, `longshore_buffer_sync` stands around each access.
 *
 * @param buffer A buffer.
 * @return The first byte, at a multiple of the page size, valid for `longshore_buffer_len` bytes
 *   and as long as the buffer; NULL if `buffer` is NULL. Not to be read if the length is 0.
 */
const void *longshore_buffer_data(const longshore_buffer *buffer);

/**
 * The content of a buffer, to be written to. Whoever has it mapped sees what is written.
 *
 * @param buffer A buffer.
 * @return As `longshore_buffer_data`; NULL if the content is sealed, that is, was not loaded with
 *   `LONGSHORE_LOAD_WRITABLE`, or if `buffer` is NULL.
 */
void *longshore_buffer_data_mut(longshore_buffer *buffer);

/**
 * The length of a buffer's content. Of several files each begins at a multiple of 4096, and the
 * bytes between them are zero.
 *
 * @param buffer A buffer.
 * @return The length in bytes; 0 if `buffer` is NULL.
 */
uint64_t longshore_buffer_len(const longshore_buffer *buffer);

/**
 * Whether the content is sealed: neither this process nor any other can ever change it.
 *
 * @param buffer A buffer.
 * @return 1 if it is, 0 if it is not or `buffer` is NULL.
 */
int longshore_buffer_is_sealed(const longshore_buffer *buffer);

/**
 * Which heap the memory came from.
 *
 * @param buffer A buffer.
 * @return `memfd`, `memfd:4k`, `hugetlb`, `udmabuf` or `dma-heap:NAME`, or `attached` for memory of
 *   a server, which lasts as long as the buffer; NULL if `buffer` is NULL.
 */
const char *longshore_buffer_heap(const longshore_buffer *buffer);

/**
 * The page size that at least nine tenths of a buffer came out in. It decides how fast disks and
 * devices are; `longshore_buffer_stats` has the shares.
 *
 * @param buffer A buffer.
 * @return The size in bytes; 0 if the sizes are mixed or not known, as of what is attached, or `buffer`
 *   is NULL.
 */
uint64_t longshore_buffer_page_size(const longshore_buffer *buffer);

/**
 * The memfd of a buffer, to be mapped, sent over a Unix socket or given to a device. It is
 * read-only where the content is sealed, and closed on exec. All who have it or a duplicate share
 * one file position: to read from it, use `pread`, `longshore_buffer_fd_open` or
 * `longshore_buffer_path`.
 *
 * @param buffer A buffer.
 * @return The descriptor, which belongs to the buffer and must not be closed; -1 if the memory is
 *   of a `dma-heap`, which has no memfd, or `buffer` is NULL.
 */
int longshore_buffer_fd_borrow(const longshore_buffer *buffer);

/**
 * Duplicates the memfd of a buffer. The memory lives until the last descriptor and mapping of it
 * is gone, also when the buffer was freed. Closed on exec.
 *
 * @param buffer A buffer.
 * @param fd Where to put the descriptor, which the caller closes; -1 on failure.
 * @param error Where to put what went wrong, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the memory is of a `dma-heap`;
 *   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
 */
longshore_code longshore_buffer_fd_dup(const longshore_buffer *buffer,
                                       int *fd,
                                       longshore_error **error);

/**
 * Opens the memfd of a buffer anew: for reading only, with a file position of its own at its
 * beginning, so that two readers do not disturb each other. Closed on exec. `/proc` must be
 * mounted.
 *
 * @param buffer A buffer.
 * @param fd Where to put the descriptor, which the caller closes; -1 on failure.
 * @param error Where to put what went wrong, or NULL.
 * @return As `longshore_buffer_fd_dup`.
 */
longshore_code longshore_buffer_fd_open(const longshore_buffer *buffer,
                                        int *fd,
                                        longshore_error **error);

/**
 * A path under which this process can open a buffer as a file, by `fopen` or in any other way: for
 * readers that take a path and know nothing of Longshore. Each opening has a file position of its
 * own. `/proc` must be mounted.
 *
 * @param buffer A buffer.
 * @return The path, `/proc/self/fd/N`, which lasts as long as the buffer; NULL if the memory is of
 *   a `dma-heap`, which cannot be opened, or `buffer` is NULL. Of what has the right to, another
 *   process opens `/proc/PID/fd/N`.
 */
const char *longshore_buffer_path(const longshore_buffer *buffer);

/**
 * The length of the file behind a buffer's descriptors: that of the content for heap `memfd`, more
 * where the heap deals in whole pages. What lies between is zero.
 *
 * @param buffer A buffer.
 * @return The length in bytes; 0 if `buffer` is NULL.
 */
uint64_t longshore_buffer_fd_len(const longshore_buffer *buffer);

/**
 * The dma-buf of a buffer, to be given to a driver.
 *
 * @param buffer A buffer.
 * @return The descriptor, which belongs to the buffer and must not be closed; -1 if the heap is
 *   neither `udmabuf` nor `dma-heap`, or `buffer` is NULL.
 */
int longshore_buffer_dma_buf_fd_borrow(const longshore_buffer *buffer);

/**
 * Duplicates the dma-buf of a buffer. Closed on exec.
 *
 * @param buffer A buffer.
 * @param fd Where to put the descriptor, which the caller closes; -1 on failure.
 * @param error Where to put what went wrong, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the heap is neither `udmabuf` nor `dma-heap`;
 *   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
 */
longshore_code longshore_buffer_dma_buf_fd_dup(const longshore_buffer *buffer,
                                               int *fd,
                                               longshore_error **error);

/**
 * Begins or ends the CPU's access to a buffer that is a dma-buf, as `DMA_BUF_IOCTL_SYNC` does:
 * what devices wrote is seen by the CPU after the beginning, and what the CPU wrote by devices
 * after the end. Nothing is done where there is no dma-buf.
 *
 * @param buffer A buffer.
 * @param flags `LONGSHORE_SYNC_READ`, `LONGSHORE_SYNC_WRITE` or both or'ed, and
 *   `LONGSHORE_SYNC_END` to end what was begun.
 * @param error Where to put what went wrong, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_SYSTEM` if the kernel refuses; `LONGSHORE_INVALID_ARGUMENT`.
 */
longshore_code longshore_buffer_sync(const longshore_buffer *buffer,
                                     uint32_t flags,
                                     longshore_error **error);

/**
 * The code of an error: what the function returned that made it.
 *
 * @param error An error.
 * @return Its code; `LONGSHORE_INVALID_ARGUMENT` if `error` is NULL.
 */
longshore_code longshore_error_code(const longshore_error *error);

/**
 * The `errno` of an error: what the kernel said, or else what comes nearest, such as `EINVAL` for
 * an argument, `ENOMEM`, `ECANCELED`, `EBADMSG` for a file of a wrong format.
 *
 * @param error An error.
 * @return A value of `errno.h`, never 0; `EINVAL` if `error` is NULL.
 */
int longshore_error_errno(const longshore_error *error);

/**
 * The message of an error: what failed, with which file, where, how far it had come, and what to
 * do where something can be done. One line of UTF-8, without a line feed at its end.
 *
 * @param error An error.
 * @return The message, which lasts as long as the error; NULL if `error` is NULL.
 */
const char *longshore_error_message(const longshore_error *error);

/**
 * Frees an error.
 *
 * @param error An error that is used no more, or NULL.
 */
void longshore_error_free(longshore_error *error);

/**
 * The number of files that a buffer was filled from: those that were named, with shards in
 * place of their index and splits in place of their first.
 *
 * @param buffer A buffer.
 * @return The number; 0 if `buffer` is NULL.
 */
size_t longshore_buffer_file_count(const longshore_buffer *buffer);

/**
 * One of the files that a buffer was filled from, in the order of the buffer.
 *
 * @param buffer A buffer.
 * @param index Which: 0 for the first.
 * @return The file, which lasts as long as the buffer; NULL if there are not so many or `buffer`
 *   is NULL.
 */
const longshore_file *longshore_buffer_file(const longshore_buffer *buffer, size_t index);

/**
 * The path by which a file was opened.
 *
 * @param file A file of a buffer.
 * @return The path, which lasts as long as the buffer; NULL if `file` is NULL.
 */
const char *longshore_file_path(const longshore_file *file);

/**
 * Where a file begins in the buffer.
 *
 * @param file A file of a buffer.
 * @return The offset in bytes, a multiple of 4096 and of `align_bytes`; 0 if `file` is NULL.
 */
uint64_t longshore_file_offset(const longshore_file *file);

/**
 * How many bytes of the buffer are a file: its length, or that of what took its place where its
 * tensors were aligned.
 *
 * @param file A file of a buffer.
 * @return The length in bytes; 0 if `file` is NULL.
 */
uint64_t longshore_file_len(const longshore_file *file);

/**
 * A checksum of a file as it is on the disk, computed while it was read.
 *
 * @param file A file of a buffer.
 * @param kind One of `LONGSHORE_VERIFY_*`.
 * @return Lower-case hexadecimal digits, which last as long as the buffer; NULL if neither
 *   `verify` nor the manifest asked for this checksum, the buffer is
 *   attached, or `file` is NULL.
 */
const char *longshore_file_digest(const longshore_file *file, uint32_t kind);

/**
 * Loads files into one new buffer, one behind the other, and returns when it is complete, and
 * verified if that was asked for. The content is sealed then unless `LONGSHORE_LOAD_WRITABLE` was
 * set. It goes straight from the disk into huge pages, past the page cache; what is in the page
 * cache already is copied from there. A load that fails or is cancelled leaves nothing behind:
 * neither memory nor descriptor nor thread.
 *
 * The call blocks and uses a few threads of its own. Any number of threads may load at once.
 *
 * @param paths Paths of files; that of a `*.safetensors.index.json` stands for its shards, and the
 *   first of a GGUF file's splits for all.
 * @param path_count How many there are, at least 1.
 * @param options How to load, or NULL for what is done where nothing is said.
 * @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
 *   on failure.
 * @param error Where to put what went wrong, or NULL if only the code is wanted. NULL on success;
 *   what is put there is freed with `longshore_error_free`.
 * @return `LONGSHORE_OK`, or any other code.
 */
longshore_code longshore_load(const char *const *paths,
                              size_t path_count,
                              const longshore_load_options *options,
                              longshore_buffer **buffer,
                              longshore_error **error);

/**
 * Attaches a model that a server (`longshore serve`) holds, or loads for it. The memory is the
 * server's, shared with every process that attached it: sealed, and mapped here once it was checked
 * that nobody can change it. This process opens the file, too, to show that it may read it. The
 * attachment counts until the buffer is freed or the process ends; the memory stays valid until then
 * also when the server is gone.
 *
 * Nothing is sent to a server unless root, the own user, the system user `longshore` or a user of
 * the variable LONGSHORE_TRUST_UID (numbers, separated by commas) runs it.
 *
 * @param socket The server's socket, or NULL for that of this user, else the system's.
 * @param name A path, a name beneath what is served, or a number of `longshore_ls`.
 * @param options NULL, or options of which only `format`, `progress` and `progress_data` are set.
 * @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
 *   on failure.
 * @param error Where to put what went wrong, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, it refuses or is gone;
 *   `LONGSHORE_NOT_FOUND` if nothing of that name is served; or any other code.
 */
longshore_code longshore_attach(const char *socket,
                                const char *name,
                                const longshore_load_options *options,
                                longshore_buffer **buffer,
                                longshore_error **error);

/**
 * Shows the models that a server holds. `longshore_attach` documents which servers are trusted.
 *
 * @param socket The server's socket, or NULL for that of this user, else the system's.
 * @param visit Called for each model, on this thread, when all of them are known.
 * @param data What `visit` is given as its last argument.
 * @param error Where to put what went wrong, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, it refuses or is gone;
 *   `LONGSHORE_INVALID_ARGUMENT` if `visit` is NULL.
 */
longshore_code longshore_ls(const char *socket,
                            longshore_visit visit,
                            void *data,
                            longshore_error **error);

/**
 * Tells what the load did that made a buffer.
 *
 * @param buffer A buffer.
 * @param stats Where to put it. Its `size` must be set, as `sizeof(longshore_stats)`, and is kept;
 *   fields that the library does not know are set to zero.
 * @param error Where to put what went wrong, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` for what is attached, which its server loaded;
 *   `LONGSHORE_INVALID_ARGUMENT` for NULL or a `size` that cannot be.
 */
longshore_code longshore_buffer_stats(const longshore_buffer *buffer,
                                      longshore_stats *stats,
                                      longshore_error **error);

/**
 * The number of tensors in a buffer.
 *
 * @param buffer A buffer.
 * @return The number; 0 if its files have no tensors that are known, or `buffer` is NULL.
 */
size_t longshore_buffer_tensor_count(const longshore_buffer *buffer);

/**
 * One of the tensors in a buffer, in the order of their files and of their data in them.
 *
 * @param buffer A buffer.
 * @param index Which: 0 for the first.
 * @return The tensor, which lasts as long as the buffer; NULL if there are not so many or `buffer`
 *   is NULL.
 */
const longshore_tensor *longshore_buffer_tensor(const longshore_buffer *buffer, size_t index);

/**
 * The tensor of a name, found in a time that grows with the logarithm of their number.
 *
 * @param buffer A buffer.
 * @param name The name, as it is in the file.
 * @return The tensor, which lasts as long as the buffer: the first in the buffer, if several files
 *   have one of this name; NULL if none has, or an argument is NULL.
 */
const longshore_tensor *longshore_buffer_find_tensor(const longshore_buffer *buffer,
                                                     const char *name);

/**
 * The name of a tensor, as it is in the file: UTF-8, in which any character may be, also such as
 * a terminal obeys.
 *
 * @param tensor A tensor.
 * @return The name, which lasts as long as the buffer; NULL if `tensor` is NULL. A NUL ends it;
 *   where the name itself has one, `longshore_tensor_name_len` tells its whole length.
 */
const char *longshore_tensor_name(const longshore_tensor *tensor);

/**
 * The length of a tensor's name.
 *
 * @param tensor A tensor.
 * @return The length in bytes, without the NUL at its end; 0 if `tensor` is NULL.
 */
size_t longshore_tensor_name_len(const longshore_tensor *tensor);

/**
 * What the elements of a tensor are, in the words of its format: `BF16`, `F8_E4M3`, `Q4_K`.
 *
 * @param tensor A tensor.
 * @return A string that lasts as long as the buffer; NULL if `tensor` is NULL.
 */
const char *longshore_tensor_dtype(const longshore_tensor *tensor);

/**
 * The number of dimensions of a tensor.
 *
 * @param tensor A tensor.
 * @return The number; 0 for a scalar, and if `tensor` is NULL.
 */
size_t longshore_tensor_ndim(const longshore_tensor *tensor);

/**
 * The dimensions of a tensor, outermost first, also of a GGUF file, which has them the other way
 * round. If one is zero there is no data.
 *
 * @param tensor A tensor.
 * @return As many numbers as `longshore_tensor_ndim` says, which last as long as the buffer; NULL
 *   if `tensor` is NULL.
 */
const uint64_t *longshore_tensor_shape(const longshore_tensor *tensor);

/**
 * Where the data of a tensor begins in the buffer, and so in the file behind its descriptor.
 *
 * @param tensor A tensor.
 * @return The offset in bytes; 0 if `tensor` is NULL.
 */
uint64_t longshore_tensor_offset(const longshore_tensor *tensor);

/**
 * How long the data of a tensor is.
 *
 * @param tensor A tensor.
 * @return The length in bytes; 0 if `tensor` is NULL.
 */
uint64_t longshore_tensor_len(const longshore_tensor *tensor);

/**
 * The data of a tensor: `longshore_buffer_data` plus `longshore_tensor_offset`, and what is said
 * of the former. It is aligned to `align_bytes`, or as
 * the file has it, which may be not at all.
 *
 * @param tensor A tensor.
 * @return The data, which lasts as long as the buffer; NULL if `tensor` is NULL.
 */
const void *longshore_tensor_data(const longshore_tensor *tensor);

/**
 * Which file a tensor is in: the `index` of `longshore_buffer_file`.
 *
 * @param tensor A tensor.
 * @return The index; 0 if `tensor` is NULL.
 */
size_t longshore_tensor_file_index(const longshore_tensor *tensor);

/**
 * The version of the library that runs, such as `0.1.0`. That of the header is
 * `LONGSHORE_VERSION`.
 *
 * @return A string that lasts as long as the program.
 */
const char *longshore_version(void);

/**
 * The version of the library that runs as one number, so that a later one is greater. That of the
 * header is `LONGSHORE_VERSION_NUMBER`.
 *
 * @return The major version times 65536, plus the minor one times 256, plus the patch level.
 */
uint32_t longshore_version_number(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LONGSHORE_H */
