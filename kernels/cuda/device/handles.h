// What the handles of kernels/core/device_table.h are in this library, for .cu files too: nothing of
// kernels/core that brings fmt, which nvcc cannot read.
//
// Ownership: as the table says. Threads: one a device. Errors: `failed` keeps the text of the last
// failure in the device and gives the table's result.
#pragma once

#include <cuda_runtime.h>

#include "kernels/core/device_table.h"

namespace ofsdp::kernels::cuda {

int32_t failed(ofsdp_device* device, cudaError_t error, const char* what);
inline cudaStream_t raw(ofsdp_stream* stream) { return reinterpret_cast<cudaStream_t>(stream); }

void use_device(int ordinal);  // on this thread

// The functions of the table, by file.
void add_memory(ofsdp_device_table& table);
void add_order(ofsdp_device_table& table);
void add_operators(ofsdp_device_table& table);
void add_arithmetic(ofsdp_device_table& table);
void add_optimizers(ofsdp_device_table& table);
void add_groups(ofsdp_device_table& table);
void add_exact(ofsdp_device_table& table);
void add_mark(ofsdp_device_table& table);

}  // namespace ofsdp::kernels::cuda
