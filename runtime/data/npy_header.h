// The header of .npy files (NEP 1): types by NumPy's names, and the first bytes of a file in C
// order, version 1.
//
// Threads: any. Errors: none; npy_header REQUIRES a dtype that has a name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/dtype.h"

namespace ofsdp::runtime {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

std::optional<DType> npy_dtype(std::string_view descr);  // of "<f4"
std::optional<std::string_view> npy_descr(DType dtype);  // none of bfloat16
std::string npy_header(DType dtype, const std::vector<int64_t>& dims);

}  // namespace ofsdp::runtime
