#include "kernels/cpu/indexed.h"

namespace ofsdp::kernels {
namespace {

// Returns, for axes begin .. end-1 in `walked`, each element's offset in a plain tensor with shape
// `data`.
std::vector<int64_t> offsets(const Shape& data, const Shape& walked, int begin, int end) {
  std::vector<int64_t> at{0};
  for (int axis = begin; axis < end; ++axis) {
    const int64_t step = data.numel(axis + 1, data.rank());
    std::vector<int64_t> next;
    next.reserve(at.size() * static_cast<size_t>(walked[axis]));
    for (int64_t offset : at) {
      for (int64_t i = 0; i < walked[axis]; ++i) next.push_back(offset + i * step);
    }
    at = std::move(next);
  }
  return at;
}

}  // namespace

ElementPlaces::ElementPlaces(const Shape& data, const Shape& indices, int64_t axis)
    : lines(lines_along(indices, axis)) {
  const auto at = static_cast<int>(wrapped(axis, data.rank()));
  n = data[at];
  step = data.numel(at + 1, data.rank());
  outer_at = offsets(data, indices, 0, at);
  inner_at = offsets(data, indices, at + 1, data.rank());
}

TuplePlaces::TuplePlaces(const Shape& data, const Shape& indices, int batch_axes) {
  const int last = indices.rank() - 1;
  const int members = static_cast<int>(indices[last]);
  tuples = indices.numel(0, last);
  per_batch = std::max<int64_t>(indices.numel(batch_axes, last), 1);
  batch_step = data.numel(batch_axes, data.rank());
  slice = data.numel(batch_axes + members, data.rank());
  for (int i = batch_axes; i < batch_axes + members; ++i) {
    sizes.push_back(data[i]);
    steps.push_back(data.numel(i + 1, data.rank()));
  }
}

Status TuplePlaces::check(const int64_t* indices) const {
  const size_t members = sizes.size();
  for (int64_t t = 0; t < tuples; ++t) {
    for (size_t i = 0; i < members; ++i) {
      const int64_t index = indices[static_cast<size_t>(t) * members + i];
      if (index >= -sizes[i] && index < sizes[i]) continue;
      return input_error("index {} at member {} of tuple {} is outside -{}..{}", index, i, t,
                         sizes[i], sizes[i] - 1);
    }
  }
  return ok_status();
}

}  // namespace ofsdp::kernels
