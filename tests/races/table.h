// The launches of a training step's kernels, one row each. A row makes its buffers and launches. It
// runs once in the drawn order and once in the reverse order, and each finding is printed with the
// row's name.
//
// Views of `watched`. Threads: one. Errors: counted in `faults`.
#pragma once

#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/races/watched.h"

namespace ofsdp::races {

class Table {
 public:
  Table(Watched* watched, bool all, std::string only)
      : watched_(watched), all_(all), only_(std::move(only)) {}

  void row(const std::string& name, const Launching& launch);
  // The rows' float types: two without `all`.
  std::vector<DType> floats() const;
  // Without `all`, only the first.
  template <typename T>
  std::vector<T> some(std::initializer_list<T> values) const {
    return all_ ? std::vector<T>(values) : std::vector<T>{*values.begin()};
  }
  bool all() const { return all_; }
  int rows() const { return rows_; }
  int faults() const { return faults_; }

 private:
  Watched* watched_;
  bool all_;
  std::string only_;
  int rows_ = 0, faults_ = 0;
};

// "norm bfloat16 96": words with a space between.
template <typename... Words>
std::string named(const Words&... words) {
  std::string name;
  const auto add = [&name](const auto& word) {
    using Word = std::decay_t<decltype(word)>;
    if (!name.empty()) name += ' ';
    if constexpr (std::is_same_v<Word, DType>) {
      name += kernels::dtype_name(word);
    } else if constexpr (std::is_arithmetic_v<Word>) {
      name += std::to_string(word);
    } else {
      name += word;
    }
  };
  (add(words), ...);
  return name;
}

// The rows, by families in kernels/cuda.
void add_attention_rows(Table& table);
void add_norm_rows(Table& table);
void add_loss_rows(Table& table);
void add_pointwise_rows(Table& table);
void add_shape_rows(Table& table);
void add_indexing_rows(Table& table);
void add_image_rows(Table& table);
void add_training_rows(Table& table);

}  // namespace ofsdp::races
