// Reads optimizer states in fewer bits (kernels/core/stored_state.h).
#pragma once

#include "kernels/core/stored_state.h"
#include "kernels/cuda/device/device.cuh"
#include "kernels/formulas/code_book.h"

namespace ofsdp::kernels::cuda {
namespace {

__constant__ CodeBook signed_book = make_code_book(true);
__constant__ CodeBook unsigned_book = make_code_book(false);

__device__ inline const CodeBook& book_of(StateForm form) {
  return form == StateForm::kSigned8 ? signed_book : unsigned_book;
}

__device__ inline float decoded(const StoredState& s, int64_t i) {
  if (s.form == StateForm::kFloat32) return reinterpret_cast<const float*>(s.elements)[i];
  if (s.form == StateForm::kBFloat16) {
    return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(s.elements)[i]);
  }
  const auto code = static_cast<uint8_t>(s.elements[i]);
  return book_of(s.form).values[code] * s.scales[i / kStateBlock];
}

}  // namespace
}  // namespace ofsdp::kernels::cuda
