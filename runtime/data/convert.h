// Converter: elements of a column as they are stored, made into what the graph wants.
//
// Settled once: the same type is copied, integers change their width with a check of the range,
// float16 and float64 become float32, uint8 becomes float32 by a table of 256 values. Anything else
// has no Converter.
//
// `run` changes nothing. Nothing allocates in `run`.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "runtime/data/data_spec.h"

namespace ofsdp::runtime {

class Converter {
 public:
  // Empty when `from` does not convert to `to`, or a normalization stands where none is possible.
  // `of_text`: int64 also becomes float32 or bool, as the number was written without a type.
  // `classes`: floats also become integers, if they are whole numbers: labels saved as 1.0.
  static std::optional<Converter> between(DType from, DType to,
                                          const std::optional<Normalization>& normalization,
                                          bool of_text = false, bool classes = false);

  bool is_copy() const { return function_ == nullptr && table_.empty(); }
  // `count` little-endian elements; gives the index of the first that does not fit, else `count`.
  size_t run(const std::byte* src, size_t count, std::byte* dst) const;

 private:
  size_t look_up(const std::byte* src, size_t count, std::byte* dst) const;

  size_t element_bytes_ = 0;  // when copying
  size_t (*function_)(const std::byte* src, size_t count, std::byte* dst) = nullptr;
  std::vector<float> table_;  // uint8: 256 values
};

void swap_bytes(std::byte* data, size_t count, size_t element_bytes);  // in place

std::string element_text(DType dtype, const std::byte* element);  // for messages
std::string range_text(DType integer);                            // "-128..127"

}  // namespace ofsdp::runtime
