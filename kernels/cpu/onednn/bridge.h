// Bridge to oneDNN 3.2 (gomp build): operand descriptions, and a Kernel that runs one primitive.
//
// An operator describes operands as their bytes are (`desc_of`) and as it would like them (`any`,
// `channels_last`), makes a primitive_desc (always with allow_empty, so that "not implemented" is
// an empty handle and no exception) and passes it to make_kernel with a Binding for each operand.
// If the primitive wants other bytes than an operand has, the kernel reorders through its
// workspace.
//
// [Note: oneDNN and malloc] A primitive's run makes 5 to 15 `operator new` calls for at most 160
// bytes, the nodes in an argument map. Our own code makes none in a training step. Some
// implementations also call posix_memalign in every run (x64:gemm once per image, brgconv for
// strided backward); first_quiet skips those. Scratchpads are ours (mode user): part of the
// workspace.
//
// A kernel owns primitives, memory objects and argument lists. It runs on the thread that runs the
// schedule; oneDNN fans out over libgomp's pool. A dnnl::error at creation means a malformed
// description, our bug, and ends the program; a failed run is a fault.
#pragma once

#include <dnnl.hpp>
#include <memory>
#include <string_view>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cpu/products.h"

namespace ofsdp::kernels::onednn {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;

const dnnl::engine& engine();
dnnl::memory::data_type data_type(DType dtype);  // undef: oneDNN lacks the type
bool has_isa(dnnl::cpu_isa wanted);              // the processor has it, and oneDNN may use it
// Returns whether oneDNN has the type, and multiplies it no slower than float32.
bool has_type(DType dtype);

// Why an implementation refuses a problem.
inline constexpr const char* kNoType = "a type that oneDNN has not";
inline constexpr const char* kNoPrimitive = "oneDNN has no such primitive";

// Empty if an axis has 2^31 elements or more: then there is no primitive.
Desc row_major(DType dtype, const Dims& dims);
Desc strided(DType dtype, const Dims& dims, const Dims& strides);
Desc channels_last(DType dtype, const Dims& dims);  // [N, C, spatial...] as N, spatial..., C
Desc any(DType dtype, const Dims& dims);            // oneDNN chooses
Desc desc_of(const TensorDesc& desc);               // the bytes as they are

dnnl::primitive_attr attributes();  // scratchpad by the caller, float32 stays float32

// Whether an implementation calls malloc at run time, or is the plain loops ("ref"), which take
// hundreds of times as long.
bool is_noisy(std::string_view implementation);
bool is_reference(std::string_view implementation);

// Returns whether oneDNN has a primitive other than plain loops.
bool is_fast(const auto& pd) {
  return pd.get(true) != nullptr && !is_reference(pd.impl_info_str());
}

// Returns the first implementation that is neither; else the first one; empty if there is none.
auto first_quiet(const auto& make) {
  auto pd = make();
  bool more = pd.get(true) != nullptr;
  while (more) {
    if (!is_noisy(pd.impl_info_str()) && !is_reference(pd.impl_info_str())) return pd;
    more = pd.next_impl();
  }
  return make();  // next_impl changed the handle: start again
}

// A primitive's argument, and the node's operand bound to it.
struct Binding {
  int argument;    // DNNL_ARG_SRC, ...
  bool is_output;  // in KernelArgs::outputs, else ::inputs
  size_t index;
  Desc desc;  // byte order
};

std::unique_ptr<Kernel> make_kernel(const dnnl::primitive_desc_base& pd,
                                    const std::vector<Binding>& bindings);

}  // namespace ofsdp::kernels::onednn
