/*
 * Longshore loads files at the disk's speed into memory that devices and processes share.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * Handles are opaque. The end of a function's name shows who owns its result: the handle owns the
 * result of `_borrow`, which is valid as long as the handle; the caller closes the results of `_dup`
 * and `_open` of a descriptor. The caller passes the buffers of `longshore_load` and
 * `longshore_attach` to `longshore_buffer_free`, the streams of `longshore_stream_open` to
 * `longshore_stream_free`, their tensors to `longshore_streamed_tensor_free`, and errors to
 * `longshore_error_free`.
 *
 * A function that can fail returns a `longshore_code`, which is `LONGSHORE_OK` on success, and takes
 * as its last argument the address for a `longshore_error`, or NULL. No function aborts, throws or
 * writes to standard error if an argument is NULL: it fails with `LONGSHORE_INVALID_ARGUMENT`, or
 * returns the value that its documentation gives for NULL.
 *
 * Any number of threads may use a handle at the same time, but not while a thread frees it. No
 * function changes signal handlers, the locale or other state of the process. Threads that
 * `longshore_load` starts end before it returns, and those of a stream when it is freed. Lengths and
 * offsets are in bytes.
 *
 * cbindgen generates this file from bindings/c/src; do not edit it.
 */

#ifndef LONGSHORE_H
#define LONGSHORE_H

#include <stddef.h>
#include <stdint.h>

/** The version of this header. `longshore_version` returns that of the library in use. */
#define LONGSHORE_VERSION "0.1.0"
/** The major version of this header. */
#define LONGSHORE_VERSION_MAJOR 0
/** The minor version of this header. While the major version is 0, each has its own ABI. */
#define LONGSHORE_VERSION_MINOR 1
/** The patch level of this header. */
#define LONGSHORE_VERSION_PATCH 0
/** The version of this header as one number, which is greater for later versions. */
#define LONGSHORE_VERSION_NUMBER \
    ((LONGSHORE_VERSION_MAJOR << 16) | (LONGSHORE_VERSION_MINOR << 8) | LONGSHORE_VERSION_PATCH)

/** The initial value of `longshore_load_options`: the defaults, with the size set. */
#define LONGSHORE_LOAD_OPTIONS_INIT \
    {sizeof(longshore_load_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, NULL, NULL, \
     NULL, 0, 0, 0}
/** The initial value of `longshore_stream_options`: the defaults, with the size set. */
#define LONGSHORE_STREAM_OPTIONS_INIT \
    {sizeof(longshore_stream_options), NULL, NULL, NULL, NULL, 0, NULL, 0, NULL, 0, NULL, 0, \
     0, 0, 0, 0, NULL, NULL, NULL, 0, 0, 0}
/** The initial value of `longshore_rows`: no rows of all tensors, with the size set. */
#define LONGSHORE_ROWS_INIT {sizeof(longshore_rows), NULL, 0, 0, 0, 0}

/**
 * For `longshore_buffer_sync`: the CPU reads.
 */
#define LONGSHORE_SYNC_READ 1

/**
 * For `longshore_buffer_sync`: the CPU writes.
 */
#define LONGSHORE_SYNC_WRITE 2

/**
 * For `longshore_buffer_sync`: the CPU access ends.
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
 * For `flags`: do not seal the content; every process that has the memory can write to it. The heaps
 * `udmabuf` and `dma-heap` need this flag, because they cannot seal their content.
 */
#define LONGSHORE_LOAD_WRITABLE 1

/**
 * For `flags`: do not use io_uring, even if it is available.
 */
#define LONGSHORE_LOAD_NO_URING 2

/**
 * For `flags` of `longshore_held`: the model is complete; if not set, it is still being loaded.
 */
#define LONGSHORE_HELD_READY 1

/**
 * For `flags` of `longshore_held`: the files on the disk have changed since the load.
 */
#define LONGSHORE_HELD_STALE 2

/**
 * For `flags` of `longshore_held`: the server keeps the model as long as it runs.
 */
#define LONGSHORE_HELD_PINNED 4

/**
 * For `page_cache_growth_bytes`: the kernel does not report it.
 */
#define LONGSHORE_UNKNOWN INT64_MIN

/**
 * For `flags` of `longshore_stream_options`: do not use io_uring, even if it is available.
 */
#define LONGSHORE_STREAM_NO_URING 1

/**
 * For `flags` of `longshore_stream_options`: yield tensors as their reads are complete. Without
 * this flag, they are in the order of the files, and in a file in the order of their data. With
 * checksums, this flag has no effect.
 */
#define LONGSHORE_STREAM_BY_COMPLETION 2

/**
 * For `flags` of `longshore_stream_options`: if the memory is full, take more for the next tensor,
 * which is returned to the kernel when that tensor is freed. Without this flag,
 * `longshore_stream_next` fails with `LONGSHORE_STREAM_FULL`.
 */
#define LONGSHORE_STREAM_GROW 4

/**
 * For `wait_ms`: do not wait for other threads to free tensors.
 */
#define LONGSHORE_NO_WAIT UINT64_MAX

/**
 * The result of a function that can fail. Later versions may add codes.
 */
enum longshore_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /**
     * Success.
     */
    LONGSHORE_OK = 0,
    /**
     * An argument must not be NULL, or has an invalid value.
     */
    LONGSHORE_INVALID_ARGUMENT = 1,
    /**
     * A file cannot be opened; the error's `errno` is the reason.
     */
    LONGSHORE_CANNOT_OPEN = 2,
    /**
     * A path names a directory, a FIFO, a socket or a device.
     */
    LONGSHORE_NOT_REGULAR = 3,
    /**
     * The disk or file system failed, or a server that sends the file.
     */
    LONGSHORE_READ_FAILED = 4,
    /**
     * A file was written to or truncated while it was read.
     */
    LONGSHORE_FILE_CHANGED = 5,
    /**
     * The content does not fit into memory, or into the given limit.
     */
    LONGSHORE_NO_MEMORY = 6,
    /**
     * The requested heap or mode is not available on this machine or for this file, or the content
     * of the heap cannot be sealed.
     */
    LONGSHORE_UNAVAILABLE = 7,
    /**
     * A callback cancelled the load or the wait, or `longshore_stream_cancel` cancelled the stream.
     */
    LONGSHORE_CANCELLED = 8,
    /**
     * A checksum differs from the manifest.
     */
    LONGSHORE_MISMATCH = 9,
    /**
     * A file is not valid in its format, or a manifest cannot be parsed.
     */
    LONGSHORE_BAD_FORMAT = 10,
    /**
     * The buffer has no descriptor of that kind or no statistics, or the server has no such model.
     */
    LONGSHORE_NOT_FOUND = 11,
    /**
     * A system call failed, or a resource of the process is exhausted.
     */
    LONGSHORE_SYSTEM = 12,
    /**
     * A bug in Longshore. Nothing is left behind; please report it.
     */
    LONGSHORE_INTERNAL = 13,
    /**
     * No server listens, or it refuses, has ended, does not answer, or cannot be trusted.
     */
    LONGSHORE_SERVER = 14,
    /**
     * The memory of a stream is full of tensors that the program holds. Free some, and call again.
     */
    LONGSHORE_STREAM_FULL = 15,
    /**
     * A stream has failed before. The call that failed first has returned the code of the reason.
     */
    LONGSHORE_STREAM_FAILED = 16,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum longshore_code longshore_code;
#else
typedef int32_t longshore_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * A filled buffer: memory with a descriptor that can be passed to devices and other processes. Its
 * content is complete, and verified if that was requested. `longshore_load` and `longshore_attach`
 * create it, and `longshore_buffer_free` frees it.
 */
typedef struct longshore_buffer longshore_buffer;

/**
 * An error: a code, an `errno` and a message. A function that fails creates it. It is immutable, and
 * the caller owns it and frees it with `longshore_error_free`.
 */
typedef struct longshore_error longshore_error;

/**
 * A file that a buffer was filled from, or that a stream reads. It belongs to the buffer or the
 * stream, and is valid as long as its owner.
 */
typedef struct longshore_file longshore_file;

/**
 * The tensors of files, read one after the other into bounded memory. `longshore_stream_open`
 * creates it, and `longshore_stream_free` frees it. Any number of threads may use it at the same
 * time. A child process of `fork` keeps a copy of the tensors that the program has, and cannot get
 * others.
 */
typedef struct longshore_stream longshore_stream;

/**
 * A tensor, or rows of it, that a stream has yielded. Its data is in memory that no other code
 * has. `longshore_stream_next` creates it, and `longshore_streamed_tensor_free` frees it. It may
 * outlive its stream.
 */
typedef struct longshore_streamed_tensor longshore_streamed_tensor;

/**
 * A tensor. It belongs to a `longshore_buffer` or a `longshore_streamed_tensor`, and is valid as
 * long as its owner.
 */
typedef struct longshore_tensor longshore_tensor;

/**
 * A callback for the progress of a load. It is called about twenty times a second and once at the
 * end, on the thread that called `longshore_load`. It must return: no exception and no `longjmp` may
 * leave it.
 *
 * @param done_bytes The bytes that are in the buffer.
 * @param total_bytes The bytes of the whole load.
 * @param data The `progress_data` of the options.
 * @return 0 to continue; any other value cancels the load, which then leaves nothing behind.
 */
typedef int (*longshore_progress)(uint64_t done_bytes, uint64_t total_bytes, void *data);

/**
 * An option of object stores, such as `aws_endpoint_url`. The names are those of the Rust crate
 * `object_store`. The value can be secret: no error shows it.
 */
typedef struct {
    /**
     * The name.
     */
    const char *name;
    /**
     * The value, in UTF-8.
     */
    const char *value;
} longshore_storage_option;

/**
 * The options of a load. Initialize them with `LONGSHORE_LOAD_OPTIONS_INIT`; a zero or NULL in any
 * field but `size` stands for the default. Later versions of Longshore add fields at the end; by
 * `size` the library recognises the version that the program was compiled for.
 */
typedef struct {
    /**
     * `sizeof(longshore_load_options)`.
     */
    size_t size;
    /**
     * The source of the memory: `auto`, `memfd`, `memfd:4k`, `hugetlb`, `udmabuf`, `dma-heap` or
     * `dma-heap:NAME`. `auto` is `udmabuf` if that is available and the content stays writable, and
     * `memfd` if not.
     */
    const char *heap;
    /**
     * How files are read: `auto`, `direct`, `buffered` or `uncached`.
     */
    const char *mode;
    /**
     * The format of the files: `raw`, `safetensors`, `gguf`, or `auto`, which chooses it by their
     * names.
     */
    const char *format;
    /**
     * The path of a manifest in the format of `sha256sum`. The load fails unless each file has its
     * checksum.
     */
    const char *manifest;
    /**
     * Place every tensor at a multiple of this while reading: a power of two up to 1 GiB, such as
     * 64. If the tensors of a file are not aligned, the buffer holds another valid file with the
     * same tensors and metadata.
     */
    uint64_t align_bytes;
    /**
     * Fail if the content has more than this number of bytes.
     */
    uint64_t memory_max_bytes;
    /**
     * The prefault window: by how many bytes prefaulted pages may be ahead of the reads. The default
     * is 128 MiB.
     */
    uint64_t populate_ahead_bytes;
    /**
     * The checksums to compute for each file: `LONGSHORE_VERIFY_*`, any number of them or'ed.
     */
    uint32_t verify;
    /**
     * `LONGSHORE_LOAD_*`, any number of them or'ed.
     */
    uint32_t flags;
    /**
     * The callback for progress.
     */
    longshore_progress progress;
    /**
     * The last argument of `progress`.
     */
    void *progress_data;
    /**
     * Options of object stores, which replace those of the environment.
     */
    const longshore_storage_option *storage_options;
    /**
     * The number of elements of `storage_options`.
     */
    size_t storage_option_count;
    /**
     * The time that all requests to servers together may take, in milliseconds. The default is no limit, but
     * a server that sends nothing for 30 seconds is given up.
     */
    uint64_t timeout_ms;
    /**
     * The number of connections to servers, up to 256. The default is 16, and up to 128 while more are faster.
     */
    uint64_t connections;
} longshore_load_options;

/**
 * A model that a server holds or is loading. Later versions add fields at the end.
 */
typedef struct {
    /**
     * The length of this struct in the library's version.
     */
    size_t size;
    /**
     * Its number, which `longshore_attach` accepts in place of a name.
     */
    uint64_t id;
    /**
     * The path by which it was requested. Valid until the callback returns.
     */
    const char *path;
    /**
     * The requested format: `auto`, `raw`, `safetensors` or `gguf`. Valid until the callback returns.
     */
    const char *format;
    /**
     * Its length in bytes.
     */
    uint64_t len_bytes;
    /**
     * The number of bytes that are loaded.
     */
    uint64_t done_bytes;
    /**
     * The time since its load began, in milliseconds.
     */
    uint64_t age_ms;
    /**
     * The number of its attachments.
     */
    uint32_t attachments;
    /**
     * `LONGSHORE_HELD_*`, any number of them or'ed.
     */
    uint32_t flags;
} longshore_held;

/**
 * A callback of `longshore_ls`, which is called for each model. It must return: no exception and no
 * `longjmp` may leave it.
 *
 * @param held A model, valid until the callback returns.
 * @param data The `data` of `longshore_ls`.
 */
typedef void (*longshore_visit)(const longshore_held *held, void *data);

/**
 * The statistics of a load. Times are in nanoseconds. Later versions add fields at the end; by `size`
 * the library recognises the version that the program was compiled for.
 */
typedef struct {
    /**
     * `sizeof(longshore_stats)`, set by the caller.
     */
    size_t size;
    /**
     * The bytes read: all files together, without the gaps between them.
     */
    uint64_t content_bytes;
    /**
     * The time from the call to the finished buffer.
     */
    uint64_t elapsed_ns;
    /**
     * The time spent on prefaulting pages, summed over all threads; most of it overlaps with reading.
     */
    uint64_t allocating_ns;
    /**
     * The time spent on reserving and mapping addresses.
     */
    uint64_t mapping_ns;
    /**
     * The time from the first read to the last.
     */
    uint64_t reading_ns;
    /**
     * The bytes that were read from the disk into the buffer by direct I/O.
     */
    uint64_t direct_bytes;
    /**
     * The bytes that were read by direct I/O into memory beside the buffer and copied, because their
     * place in the buffer does not suit direct I/O.
     */
    uint64_t staged_bytes;
    /**
     * The bytes that were copied from the page cache.
     */
    uint64_t page_cache_bytes;
    /**
     * The bytes that were read through the page cache and dropped from it.
     */
    uint64_t uncached_bytes;
    /**
     * The bytes that were read through the page cache and stay in it.
     */
    uint64_t buffered_bytes;
    /**
     * The bytes by which the files' resident pages in the page cache grew, negative if they shrank;
     * `LONGSHORE_UNKNOWN` if the kernel does not report them.
     */
    int64_t page_cache_growth_bytes;
    /**
     * The bytes of the buffer in 2 MiB pages of the hugetlb pool.
     */
    uint64_t hugetlb_2m_bytes;
    /**
     * The bytes of the buffer in transparent huge pages of 2 MiB.
     */
    uint64_t huge_2m_bytes;
    /**
     * The bytes of the buffer in pages of 64 KiB or more, but below 2 MiB.
     */
    uint64_t mid_64k_bytes;
    /**
     * The bytes of the buffer in smaller pages.
     */
    uint64_t base_bytes;
    /**
     * 1 if the direct reads used io_uring; 0 if threads made them, or if there were none.
     */
    uint64_t used_uring;
    /**
     * The bytes that were received from servers.
     */
    uint64_t remote_bytes;
} longshore_stats;

/**
 * Rows of tensors to read: a range, or a share if `share_count` is set. Rows are the indices of
 * the outermost dimension. Initialize it with `LONGSHORE_ROWS_INIT`. Later versions add fields at
 * the end.
 */
typedef struct {
    /**
     * `sizeof(longshore_rows)`.
     */
    size_t size;
    /**
     * The name of the tensor; NULL for each tensor that no other element names.
     */
    const char *name;
    /**
     * The first row.
     */
    uint64_t start;
    /**
     * The row behind the last one.
     */
    uint64_t end;
    /**
     * The index of the share, from 0.
     */
    uint64_t share_index;
    /**
     * The number of shares: consecutive parts of the rows, whose lengths differ by at most one. A
     * scalar is in each share. 0 if the rows are a range.
     */
    uint64_t share_count;
} longshore_rows;

/**
 * A callback that can stop a call of `longshore_stream_next`. While the call waits, it calls the
 * callback at least every 20 ms, on its own thread. If several threads wait, the callback runs on
 * several threads at the same time. It must not free the stream, and it must return: no exception
 * and no `longjmp` may leave it.
 *
 * @param data The `waiting_data` of the options.
 * @return 0 to go on waiting; any other value stops the call, which then fails with
 *   `LONGSHORE_CANCELLED`. The stream itself goes on.
 */
typedef int (*longshore_waiting)(void *data);

/**
 * The options of a stream. Initialize them with `LONGSHORE_STREAM_OPTIONS_INIT`; a zero or NULL in
 * any field but `size` stands for the default, and an array that is NULL for no restriction. Later
 * versions of Longshore add fields at the end; by `size` the library recognises the version that
 * the program was compiled for.
 */
typedef struct {
    /**
     * `sizeof(longshore_stream_options)`.
     */
    size_t size;
    /**
     * How files are read: `auto`, `direct`, `buffered` or `uncached`.
     */
    const char *mode;
    /**
     * The format of the files: `safetensors`, `gguf`, or `auto`, which chooses it by their names.
     */
    const char *format;
    /**
     * The path of a manifest in the format of `sha256sum`. The last tensors of a file are yielded
     * only if the file has its checksum; the others are yielded before. Files must be selected as
     * a whole.
     */
    const char *manifest;
    /**
     * The names of tensors to read. A tensor is read if its name is one of them or matches a
     * pattern.
     */
    const char *const *names;
    /**
     * The number of names.
     */
    size_t name_count;
    /**
     * Patterns of names, in which `*` stands for any characters and `?` for one.
     */
    const char *const *patterns;
    /**
     * The number of patterns.
     */
    size_t pattern_count;
    /**
     * The files to read tensors from, by the paths of the opened files. A path without a directory
     * is the name of a file in any directory.
     */
    const char *const *files;
    /**
     * The number of files.
     */
    size_t file_count;
    /**
     * The rows to read.
     */
    const longshore_rows *rows;
    /**
     * The number of elements of `rows`.
     */
    size_t rows_count;
    /**
     * The memory for tensors of 1 MiB and more. It must hold the largest selected tensor, in whole
     * units of 64 KiB and with the blocks of the disk at its ends. The default is 1 GiB, or, if
     * that is more, twice the largest selected tensor and 128 MiB.
     */
    uint64_t memory_bytes;
    /**
     * The time for which `longshore_stream_next` waits for other threads to free tensors if the
     * memory is full, in milliseconds, or `LONGSHORE_NO_WAIT`. The default is 10 seconds.
     */
    uint64_t wait_ms;
    /**
     * The checksums to compute for each file: `LONGSHORE_VERIFY_*`, any number of them or'ed.
     * Files must be selected as a whole.
     */
    uint32_t verify;
    /**
     * `LONGSHORE_STREAM_*`, any number of them or'ed.
     */
    uint32_t flags;
    /**
     * The callback that can stop a call that waits.
     */
    longshore_waiting waiting;
    /**
     * The argument of `waiting`, which must be valid until the stream is freed.
     */
    void *waiting_data;
    /**
     * Options of object stores, which replace those of the environment.
     */
    const longshore_storage_option *storage_options;
    /**
     * The number of elements of `storage_options`.
     */
    size_t storage_option_count;
    /**
     * The time that all requests to servers together may take, in milliseconds: from the
     * opening to the last tensor, with the time in which the program uses tensors. The default is no limit, but
     * a server that sends nothing for 30 seconds is given up.
     */
    uint64_t timeout_ms;
    /**
     * The number of connections to servers, up to 256. The default is 16, and up to 128 while more are faster.
     */
    uint64_t connections;
} longshore_stream_options;

/**
 * The state of a stream. Later versions add fields at the end; by `size` the library recognises
 * the version that the program was compiled for.
 */
typedef struct {
    /**
     * `sizeof(longshore_stream_report)`, set by the caller.
     */
    size_t size;
    /**
     * The number of tensors to yield.
     */
    uint64_t selected_tensors;
    /**
     * The number of their bytes.
     */
    uint64_t selected_bytes;
    /**
     * The number of tensors that `longshore_stream_next` has returned.
     */
    uint64_t yielded_tensors;
    /**
     * The bytes that were read so far: those of the tensors, rounded out to whole blocks of the
     * disk, and small gaps.
     */
    uint64_t read_bytes;
    /**
     * The memory of the stream.
     */
    uint64_t memory_bytes;
    /**
     * The bytes beside it that were taken because it was full (`LONGSHORE_STREAM_GROW`).
     */
    uint64_t grown_bytes;
    /**
     * The time since the stream was opened, in nanoseconds.
     */
    uint64_t elapsed_ns;
    /**
     * The bytes that were read from the disk by direct I/O.
     */
    uint64_t direct_bytes;
    /**
     * The bytes that were copied from the page cache.
     */
    uint64_t page_cache_bytes;
    /**
     * The bytes that were read through the page cache and dropped from it.
     */
    uint64_t uncached_bytes;
    /**
     * The bytes that were read through the page cache and stay in it.
     */
    uint64_t buffered_bytes;
    /**
     * 1 if direct reads use io_uring; 0 if threads make them, or if there were none.
     */
    uint64_t used_uring;
    /**
     * The bytes that were received from servers.
     */
    uint64_t remote_bytes;
} longshore_stream_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Frees a buffer, and its memory unless another descriptor or mapping of it exists. Pointers into
 * the buffer, descriptors borrowed from it, its tensors and its files become invalid. No thread may
 * be using any of them.
 *
 * @param buffer A buffer that is not used any more, or NULL.
 */
void longshore_buffer_free(longshore_buffer *buffer);

/**
 * Returns the content of a buffer, mapped into this process for reading. For writing, use
 * `longshore_buffer_data_mut`. If the content is not sealed, any process that has a descriptor may
 * change it at any time. If the buffer is a dma-buf, call `longshore_buffer_sync` before and after
 * each access.
 *
 * @param buffer A buffer.
 * @return The first byte, at a multiple of the page size, valid for `longshore_buffer_len` bytes
 *   and as long as the buffer; NULL if `buffer` is NULL. Do not read it if the length is 0.
 */
const void *longshore_buffer_data(const longshore_buffer *buffer);

/**
 * Returns the content of a buffer for writing. All processes that map it see the changes.
 *
 * @param buffer A buffer.
 * @return As for `longshore_buffer_data`; NULL if the content is sealed because it was not loaded
 *   with `LONGSHORE_LOAD_WRITABLE`, or if `buffer` is NULL.
 */
void *longshore_buffer_data_mut(longshore_buffer *buffer);

/**
 * Returns the length of a buffer's content. If it has several files, each begins at a multiple of
 * 4096, and the bytes between them are zero.
 *
 * @param buffer A buffer.
 * @return The length in bytes; 0 if `buffer` is NULL.
 */
uint64_t longshore_buffer_len(const longshore_buffer *buffer);

/**
 * Returns whether the content is sealed, so that no process can ever change it.
 *
 * @param buffer A buffer.
 * @return 1 if it is sealed, 0 if it is not or `buffer` is NULL.
 */
int longshore_buffer_is_sealed(const longshore_buffer *buffer);

/**
 * Returns the heap that the memory came from.
 *
 * @param buffer A buffer.
 * @return `memfd`, `memfd:4k`, `hugetlb`, `udmabuf` or `dma-heap:NAME`, or `attached` for memory of
 *   a server. The string is valid as long as the buffer; NULL if `buffer` is NULL.
 */
const char *longshore_buffer_heap(const longshore_buffer *buffer);

/**
 * Returns the page size of at least nine tenths of a buffer. Disks and devices are faster with
 * larger pages. `longshore_buffer_stats` has the bytes in pages of each size.
 *
 * @param buffer A buffer.
 * @return The size in bytes; 0 if the sizes are mixed, if they are not known because the buffer is
 *   attached, or if `buffer` is NULL.
 */
uint64_t longshore_buffer_page_size(const longshore_buffer *buffer);

/**
 * Returns the memfd of a buffer, to be mapped, sent over a Unix socket or passed to a device. It is
 * read-only if the content is sealed, and close-on-exec. The descriptor and its duplicates share
 * one file position: to read from it, use `pread`, `longshore_buffer_fd_open` or
 * `longshore_buffer_path`.
 *
 * @param buffer A buffer.
 * @return The descriptor, which belongs to the buffer and must not be closed; -1 if the memory is
 *   from a `dma-heap`, which has no memfd, or if `buffer` is NULL.
 */
int longshore_buffer_fd_borrow(const longshore_buffer *buffer);

/**
 * Duplicates the memfd of a buffer. The memory lives until its last descriptor and mapping are
 * gone, even after the buffer was freed. The duplicate is close-on-exec.
 *
 * @param buffer A buffer.
 * @param fd Where to put the descriptor, which the caller closes; -1 on failure.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the memory is from a `dma-heap`;
 *   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
 */
longshore_code longshore_buffer_fd_dup(const longshore_buffer *buffer,
                                       int *fd,
                                       longshore_error **error);

/**
 * Reopens the memfd of a buffer for reading only. The new descriptor has a file position of its own,
 * which is 0, so that two readers do not disturb each other, and is close-on-exec. `/proc` must be
 * mounted.
 *
 * @param buffer A buffer.
 * @param fd Where to put the descriptor, which the caller closes; -1 on failure.
 * @param error Where to put the error, or NULL.
 * @return As for `longshore_buffer_fd_dup`.
 */
longshore_code longshore_buffer_fd_open(const longshore_buffer *buffer,
                                        int *fd,
                                        longshore_error **error);

/**
 * Returns a path by which this process can open a buffer as a file, with `fopen` for example, for
 * code that takes only a path. Each open file has a file position of its own. `/proc` must be
 * mounted. Another process opens `/proc/PID/fd/N` instead, if it has the permission.
 *
 * @param buffer A buffer.
 * @return The path, `/proc/self/fd/N`, which is valid as long as the buffer; NULL if the memory is
 *   from a `dma-heap`, which cannot be opened, or if `buffer` is NULL.
 */
const char *longshore_buffer_path(const longshore_buffer *buffer);

/**
 * Returns the length of the file behind a buffer's descriptors: the length of the content, which the
 * heaps `udmabuf`, `dma-heap` and `hugetlb` round up to whole pages. The bytes after the content are
 * zero.
 *
 * @param buffer A buffer.
 * @return The length in bytes; 0 if `buffer` is NULL.
 */
uint64_t longshore_buffer_fd_len(const longshore_buffer *buffer);

/**
 * Returns the dma-buf of a buffer, to be passed to a driver.
 *
 * @param buffer A buffer.
 * @return The descriptor, which belongs to the buffer and must not be closed; -1 if the heap is
 *   neither `udmabuf` nor `dma-heap`, or `buffer` is NULL.
 */
int longshore_buffer_dma_buf_fd_borrow(const longshore_buffer *buffer);

/**
 * Duplicates the dma-buf of a buffer. The duplicate is close-on-exec.
 *
 * @param buffer A buffer.
 * @param fd Where to put the descriptor, which the caller closes; -1 on failure.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the heap is neither `udmabuf` nor `dma-heap`;
 *   `LONGSHORE_SYSTEM` if there are too many descriptors; `LONGSHORE_INVALID_ARGUMENT`.
 */
longshore_code longshore_buffer_dma_buf_fd_dup(const longshore_buffer *buffer,
                                               int *fd,
                                               longshore_error **error);

/**
 * Begins or ends CPU access to a buffer that is a dma-buf, by `DMA_BUF_IOCTL_SYNC`: after the
 * beginning, the CPU sees the writes of devices; after the end, devices see the writes of the CPU.
 * If the buffer is not a dma-buf, this does nothing.
 *
 * @param buffer A buffer.
 * @param flags `LONGSHORE_SYNC_READ`, `LONGSHORE_SYNC_WRITE` or both or'ed, and
 *   `LONGSHORE_SYNC_END` to end the access that began with the same flags.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_SYSTEM` if the kernel refuses; `LONGSHORE_INVALID_ARGUMENT`.
 */
longshore_code longshore_buffer_sync(const longshore_buffer *buffer,
                                     uint32_t flags,
                                     longshore_error **error);

/**
 * Returns the code of an error, which is also the result of the function that created it.
 *
 * @param error An error.
 * @return Its code; `LONGSHORE_INVALID_ARGUMENT` if `error` is NULL.
 */
longshore_code longshore_error_code(const longshore_error *error);

/**
 * Returns the `errno` of an error: the kernel's, or the nearest value if there was none, such as
 * `EINVAL` for an argument, `ENOMEM`, `ECANCELED`, or `EBADMSG` for a malformed file.
 *
 * @param error An error.
 * @return A value of `errno.h`, never 0; `EINVAL` if `error` is NULL.
 */
int longshore_error_errno(const longshore_error *error);

/**
 * Returns the message of an error: the operation, the file, the range, the bytes that were done, and
 * a remedy if there is one. It is one line of UTF-8, without a line feed at its end.
 *
 * @param error An error.
 * @return The message, which is valid as long as the error; NULL if `error` is NULL.
 */
const char *longshore_error_message(const longshore_error *error);

/**
 * Frees an error.
 *
 * @param error An error that is not used any more, or NULL.
 */
void longshore_error_free(longshore_error *error);

/**
 * Returns the number of files that a buffer was filled from. An index counts as its shards, and
 * the first of several splits as all of them.
 *
 * @param buffer A buffer.
 * @return The number; 0 if `buffer` is NULL.
 */
size_t longshore_buffer_file_count(const longshore_buffer *buffer);

/**
 * Returns one of the files that a buffer was filled from, in the order of the buffer.
 *
 * @param buffer A buffer.
 * @param index The index of the file; 0 for the first.
 * @return The file, which is valid as long as the buffer; NULL if `index` is out of bounds or
 *   `buffer` is NULL.
 */
const longshore_file *longshore_buffer_file(const longshore_buffer *buffer, size_t index);

/**
 * Returns the path by which a file was opened.
 *
 * @param file A file.
 * @return The path, which is valid as long as the file's owner; NULL if `file` is NULL.
 */
const char *longshore_file_path(const longshore_file *file);

/**
 * Returns the offset of a file in the buffer.
 *
 * @param file A file.
 * @return The offset in bytes, a multiple of 4096 and of `align_bytes`; 0 for a file of a stream,
 *   and if `file` is NULL.
 */
uint64_t longshore_file_offset(const longshore_file *file);

/**
 * Returns the length of a file: that of the file on the disk, or of its aligned layout in a buffer
 * if the tensors were aligned.
 *
 * @param file A file.
 * @return The length in bytes; 0 if `file` is NULL.
 */
uint64_t longshore_file_len(const longshore_file *file);

/**
 * Returns a checksum of a file as it is on the disk, computed while it was read.
 * `longshore_stream_file` documents when a stream has it.
 *
 * @param file A file.
 * @param kind One of `LONGSHORE_VERIFY_*`.
 * @return Lower-case hexadecimal digits, which are valid as long as the file's owner; NULL if
 *   neither `verify` nor the manifest requested this checksum, a stream has not computed it yet,
 *   the buffer is attached, or `file` is NULL.
 */
const char *longshore_file_digest(const longshore_file *file, uint32_t kind);

/**
 * Loads files into one new buffer, one after another, and returns when the buffer is complete, and
 * verified if that was requested. Its content is sealed unless `LONGSHORE_LOAD_WRITABLE` is set. By
 * default, resident pages are copied from the page cache, and the rest is read directly from the disk
 * into huge pages. A load that fails or is cancelled leaves nothing behind: neither memory nor a
 * descriptor nor a thread.
 *
 * The call blocks and uses a few threads of its own. Any number of threads may load at once.
 *
 * @param paths Paths of files. A directory stands for the model in it, `hf://ORG/NAME` for a
 *   repository of the Hugging Face Hub, a `*.safetensors.index.json` for its shards, and the first of
 *   several GGUF splits for all of them. `https://HOST/FILE` is a file of an HTTP server, and
 *   `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and `az://CONTAINER/KEY` are objects, or directories if they
 *   end with `/`.
 * @param path_count The number of paths, at least 1.
 * @param options How to load, or NULL for the defaults.
 * @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
 *   on failure.
 * @param error Where to put the error, which the caller frees with `longshore_error_free`, and which
 *   is NULL on success; or NULL if only the code is needed.
 * @return `LONGSHORE_OK`, or any other code.
 */
longshore_code longshore_load(const char *const *paths,
                              size_t path_count,
                              const longshore_load_options *options,
                              longshore_buffer **buffer,
                              longshore_error **error);

/**
 * Attaches a model of a server (`longshore serve`), which loads it if it does not hold it yet. All
 * processes that attach the model share the server's memory. It is sealed, and this function maps it
 * only after it has checked that no process can change it. This process opens the file, too, to prove
 * that it may read it. The server keeps the model until the buffer is freed or the process ends. Until
 * then the memory stays valid, even if the server ends.
 *
 * Nothing is sent to a server unless its user is root, the user of this process, the system user
 * `longshore`, or in the variable LONGSHORE_TRUST_UID (numeric user ids, separated by commas).
 *
 * @param socket The path of the server's socket, or NULL for that of this user, then the system's.
 * @param name A path, a name below a directory that is served, a name below a root of the server on
 *   another server such as `s3://BUCKET/PREFIX/`, or a number from `longshore_ls`.
 * @param options NULL, or options of which only `format`, `progress` and `progress_data` are set.
 * @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
 *   on failure.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, or it refuses or has ended;
 *   `LONGSHORE_NOT_FOUND` if no model of that name is served; or any other code.
 */
longshore_code longshore_attach(const char *socket,
                                const char *name,
                                const longshore_load_options *options,
                                longshore_buffer **buffer,
                                longshore_error **error);

/**
 * Lists the models that a server holds. `longshore_attach` documents which servers are trusted.
 *
 * @param socket The path of the server's socket, or NULL for that of this user, then the system's.
 * @param visit A callback, which is called on this thread for each model after the server has sent
 *   the whole list.
 * @param data The last argument of `visit`.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_SERVER` if there is no server, or it refuses or has ended;
 *   `LONGSHORE_INVALID_ARGUMENT` if `visit` is NULL.
 */
longshore_code longshore_ls(const char *socket,
                            longshore_visit visit,
                            void *data,
                            longshore_error **error);

/**
 * Stores the statistics of the load that filled a buffer.
 *
 * @param buffer A buffer.
 * @param stats Where to put the statistics. Its `size` must be set to `sizeof(longshore_stats)`, and
 *   is kept; fields that the library's version does not have are set to zero.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_NOT_FOUND` if the buffer is attached, because its server loaded
 *   it; `LONGSHORE_INVALID_ARGUMENT` for NULL or an invalid `size`.
 */
longshore_code longshore_buffer_stats(const longshore_buffer *buffer,
                                      longshore_stats *stats,
                                      longshore_error **error);

/**
 * Opens files, and begins to read tensors of them, with threads of its own. While the program uses
 * a tensor, the next ones are read, until the memory of the stream is full. Only the selected
 * tensors and rows are read.
 *
 * @param paths Paths of safetensors or GGUF files, directories, and names of files on servers, as for
 *   `longshore_load`.
 * @param path_count The number of paths, at least 1.
 * @param options The selection and the options, or NULL for all tensors and the defaults. Apart
 *   from `waiting_data`, it is not used after the call.
 * @param stream Where to put the stream, which the caller frees with `longshore_stream_free`; NULL
 *   on failure.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_INVALID_ARGUMENT` also if the selection does not fit the
 *   files, for example because no tensor has a name of it; `LONGSHORE_NO_MEMORY` if `memory_bytes`
 *   cannot hold the largest tensor, or is not available; or any other code.
 */
longshore_code longshore_stream_open(const char *const *paths,
                                     size_t path_count,
                                     const longshore_stream_options *options,
                                     longshore_stream **stream,
                                     longshore_error **error);

/**
 * Returns the next tensor, and waits until it is read. Each tensor goes to one of the threads that
 * call this.
 *
 * A tensor of 1 MiB or more is in the memory of the stream. If that is full of tensors that the
 * program holds, the call waits until one is freed, but no longer than `wait_ms`.
 *
 * @param stream A stream.
 * @param tensor Where to put the tensor, which the caller frees with
 *   `longshore_streamed_tensor_free`; NULL after the last tensor, and on failure.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`, also after the last tensor. `LONGSHORE_STREAM_FULL` if the memory is
 *   full, and `LONGSHORE_CANCELLED` if the callback of the options stopped the call: then the
 *   stream can go on. Any other code ends the stream, and later calls fail with
 *   `LONGSHORE_STREAM_FAILED`, or with `LONGSHORE_CANCELLED` after `longshore_stream_cancel`.
 */
longshore_code longshore_stream_next(longshore_stream *stream,
                                     longshore_streamed_tensor **tensor,
                                     longshore_error **error);

/**
 * Cancels a stream. It begins no other reads, and each call of `longshore_stream_next` fails with
 * `LONGSHORE_CANCELLED`; one that waits does so within about 20 ms. Any thread and any signal
 * handler may call this.
 *
 * @param stream A stream. If it is NULL, this does nothing.
 */
void longshore_stream_cancel(longshore_stream *stream);

/**
 * Stores the state of a stream.
 *
 * @param stream A stream.
 * @param report Where to put the state. Its `size` must be set to
 *   `sizeof(longshore_stream_report)`, and is kept; fields that the library's version does not
 *   have are set to zero. The numbers of bytes that were read are exact after the last tensor.
 * @param error Where to put the error, or NULL.
 * @return `LONGSHORE_OK`; `LONGSHORE_INVALID_ARGUMENT` for NULL or an invalid `size`.
 */
longshore_code longshore_stream_stats(const longshore_stream *stream,
                                      longshore_stream_report *report,
                                      longshore_error **error);

/**
 * Returns the number of files of a stream. An index counts as its shards, and the first of several
 * splits as all of them.
 *
 * @param stream A stream.
 * @return The number; 0 if `stream` is NULL.
 */
size_t longshore_stream_file_count(const longshore_stream *stream);

/**
 * Returns one of the files of a stream. If checksums were requested, `longshore_file_digest`
 * returns them after a call of this function that follows the last tensor of the file.
 *
 * @param stream A stream.
 * @param index The index of the file, as `longshore_tensor_file_index` returns it.
 * @return The file, which is valid as long as the stream; NULL if `index` is out of bounds or
 *   `stream` is NULL.
 */
const longshore_file *longshore_stream_file(const longshore_stream *stream, size_t index);

/**
 * Frees a stream, which need not be at its end. The call waits for the reads in flight, but no
 * longer than a second: if a disk does not answer a read, its thread ends later. The tensors of
 * the stream stay valid, and its files become invalid. No thread may be using the stream.
 *
 * @param stream A stream that is not used any more, or NULL.
 */
void longshore_stream_free(longshore_stream *stream);

/**
 * Returns the name, type, shape and data of a tensor, for the functions `longshore_tensor_*`.
 *
 * @param tensor A tensor of a stream.
 * @return The description, which is valid until the tensor is freed; NULL if `tensor` is NULL.
 */
const longshore_tensor *longshore_streamed_tensor_view(const longshore_streamed_tensor *tensor);

/**
 * Returns the data of a tensor for writing. A change of it is lost when the tensor is freed. The
 * program must not write while another thread accesses the data.
 *
 * @param tensor A tensor of a stream.
 * @return The data, at the address of `longshore_tensor_data` and valid until the tensor is freed;
 *   NULL if `tensor` is NULL. Do not access it if the length is 0.
 */
void *longshore_streamed_tensor_data_mut(longshore_streamed_tensor *tensor);

/**
 * Returns the first row that was read of a tensor. The number of rows is the first dimension of
 * its shape.
 *
 * @param tensor A tensor of a stream.
 * @return The index of the row; 0 if all rows were read or `tensor` is NULL.
 */
uint64_t longshore_streamed_tensor_first_row(const longshore_streamed_tensor *tensor);

/**
 * Frees a tensor, and gives the memory of its data back to the stream. Its view and pointers to
 * its data become invalid. No thread may be using any of them.
 *
 * @param tensor A tensor that is not used any more, or NULL.
 */
void longshore_streamed_tensor_free(longshore_streamed_tensor *tensor);

/**
 * Returns the number of tensors in a buffer.
 *
 * @param buffer A buffer.
 * @return The number; 0 if the files are raw or have no tensors, or if `buffer` is NULL.
 */
size_t longshore_buffer_tensor_count(const longshore_buffer *buffer);

/**
 * Returns one of the tensors in a buffer, in the order of their files and of their data.
 *
 * @param buffer A buffer.
 * @param index The index of the tensor; 0 for the first.
 * @return The tensor, which is valid as long as the buffer; NULL if `index` is out of bounds or
 *   `buffer` is NULL.
 */
const longshore_tensor *longshore_buffer_tensor(const longshore_buffer *buffer, size_t index);

/**
 * Finds a tensor by its name, by a binary search.
 *
 * @param buffer A buffer.
 * @param name The name, as it is in the file.
 * @return The tensor, which is valid as long as the buffer; the first in the buffer if several
 *   files have one of this name; NULL if there is none, or if an argument is NULL.
 */
const longshore_tensor *longshore_buffer_find_tensor(const longshore_buffer *buffer,
                                                     const char *name);

/**
 * Returns the name of a tensor, as it is in the file. It is UTF-8 and may contain any character,
 * including control characters and terminal escape sequences.
 *
 * @param tensor A tensor.
 * @return The name, which ends with a NUL and is valid as long as the tensor; NULL if `tensor` is
 *   NULL. The name itself may contain a NUL: `longshore_tensor_name_len` returns its whole length.
 */
const char *longshore_tensor_name(const longshore_tensor *tensor);

/**
 * Returns the length of a tensor's name.
 *
 * @param tensor A tensor.
 * @return The length in bytes, without the NUL at its end; 0 if `tensor` is NULL.
 */
size_t longshore_tensor_name_len(const longshore_tensor *tensor);

/**
 * Returns the type of a tensor's elements by its name in the format, such as `BF16`, `F8_E4M3` or
 * `Q4_K`.
 *
 * @param tensor A tensor.
 * @return A string that is valid as long as the tensor; NULL if `tensor` is NULL.
 */
const char *longshore_tensor_dtype(const longshore_tensor *tensor);

/**
 * Returns the number of dimensions of a tensor.
 *
 * @param tensor A tensor.
 * @return The number; 0 for a scalar, and if `tensor` is NULL.
 */
size_t longshore_tensor_ndim(const longshore_tensor *tensor);

/**
 * Returns the dimensions of a tensor, outermost first, even for GGUF files, which store them
 * innermost first. If a stream reads only some rows, the first dimension is their number. If a
 * dimension is zero, there is no data.
 *
 * @param tensor A tensor.
 * @return An array of `longshore_tensor_ndim` numbers, which is valid as long as the tensor; NULL
 *   if `tensor` is NULL.
 */
const uint64_t *longshore_tensor_shape(const longshore_tensor *tensor);

/**
 * Returns the offset of a tensor's data in the buffer, and so in the file behind its descriptor.
 *
 * @param tensor A tensor.
 * @return The offset in bytes; 0 for a tensor of a stream, and if `tensor` is NULL.
 */
uint64_t longshore_tensor_offset(const longshore_tensor *tensor);

/**
 * Returns the length of a tensor's data.
 *
 * @param tensor A tensor.
 * @return The length in bytes; 0 if `tensor` is NULL.
 */
uint64_t longshore_tensor_len(const longshore_tensor *tensor);

/**
 * Returns the data of a tensor. In a buffer it is `longshore_buffer_data` plus
 * `longshore_tensor_offset`, with the same rules for access. It is aligned to `align_bytes` if
 * that was set; if not, it may be unaligned, as in the file. Do not read it if the length is 0.
 *
 * @param tensor A tensor.
 * @return The data, which is valid as long as the tensor; NULL if `tensor` is NULL.
 */
const void *longshore_tensor_data(const longshore_tensor *tensor);

/**
 * Returns the file that a tensor is in, as an `index` of `longshore_buffer_file` or
 * `longshore_stream_file`.
 *
 * @param tensor A tensor.
 * @return The index; 0 if `tensor` is NULL.
 */
size_t longshore_tensor_file_index(const longshore_tensor *tensor);

/**
 * Returns the version of the library in use, such as `0.1.0`. That of the header is
 * `LONGSHORE_VERSION`.
 *
 * @return A string that is valid as long as the library is loaded.
 */
const char *longshore_version(void);

/**
 * Returns the version of the library in use as one number, which is greater for later versions. That
 * of the header is `LONGSHORE_VERSION_NUMBER`.
 *
 * @return The major version times 65536, plus the minor one times 256, plus the patch level.
 */
uint32_t longshore_version_number(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* LONGSHORE_H */
