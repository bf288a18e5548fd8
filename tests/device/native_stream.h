/* Given by `native_stream` of the device that counts, in the place of a cudaStream_t: a plug-in of
 * the tests puts functions of the host onto it as one for CUDA launches kernels. They run when the
 * device gets there, late, in a drawn order, and again in each replay of a graph. C99. */
#ifndef OFSDP_TESTS_NATIVE_STREAM_H
#define OFSDP_TESTS_NATIVE_STREAM_H

#include <stddef.h>

typedef struct ofsdp_native_stream {
  /* `function` gets a copy of the `bytes` of `arguments`. */
  void (*enqueue)(struct ofsdp_native_stream*, void (*function)(void*), const void* arguments,
                  size_t bytes);
} ofsdp_native_stream;

#endif
