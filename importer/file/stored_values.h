// StoredValues: the values of one tensor of a file that stays open for them.
//
// File::read(place, first element, dst) reads elements as float32. Ownership: shares the file.
// Threads: any. Errors: the file's.
#pragma once

#include <memory>
#include <utility>

#include "importer/file/initializer.h"

namespace ofsdp::importer {

template <typename File, typename Place>
class StoredValues final : public ValueSource {
 public:
  StoredValues(std::shared_ptr<const File> file, Place place)
      : file_(std::move(file)), place_(std::move(place)) {}
  Status read(int64_t first_element, std::span<float> dst) const override {
    return file_->read(place_, first_element, dst);
  }
  bool has_raw() const override {
    if constexpr (kHasRaw) return file_->has_raw(place_);
    return false;
  }
  Status read_raw(int64_t first_byte, std::span<std::byte> dst) const override {
    if constexpr (kHasRaw) return file_->read_raw(place_, first_byte, dst);
    return ValueSource::read_raw(first_byte, dst);
  }

 private:
  static constexpr bool kHasRaw = requires(const File& file, const Place& place) {
    file.has_raw(place);
  };

  std::shared_ptr<const File> file_;
  Place place_;
};

}  // namespace ofsdp::importer
