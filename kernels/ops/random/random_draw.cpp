#include "kernels/ops/random/random_draw.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "kernels/cpu/element_types.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp::kernels::ops {

RandomDraw::RandomDraw(const Attributes& attributes, uint64_t node_seed, const StepContext& step,
                       int64_t numel)
    : step_(&step), sample_size_(numel) {
  const float seed = attributes.f("seed", 0.0f);
  key_ = philox_key(step.seed, node_seed ^ mix64(std::bit_cast<uint32_t>(seed)), step.step);
  const auto samples = static_cast<int64_t>(step.sample_index.size());
  if (samples > 0 && numel % samples == 0) sample_size_ = numel / samples;
}

uint32_t RandomDraw::bits(int64_t i, uint64_t per_element, uint64_t which) const {
  const auto sample = static_cast<size_t>(i / sample_size_);
  const auto global = step_->sample_index.empty()
                          ? uint64_t{0}
                          : static_cast<uint64_t>(step_->sample_index[sample]);
  const auto element = static_cast<uint64_t>(i % sample_size_);
  return philox_element(key_, global, element * per_element + which);
}

double RandomDraw::uniform(int64_t i) const {
  return static_cast<double>(bits(i, 1, 0) >> 8) * 0x1p-24;
}

double RandomDraw::normal(int64_t i) const {
  const double u = (static_cast<double>(bits(i, 2, 0)) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(bits(i, 2, 1)) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

namespace {

// from_doubles with a shape of one axis, which is a vector, would allocate.
template <typename T>
void store_as(std::span<const double> values, std::byte* data) {
  for (size_t i = 0; i < values.size(); ++i)
    reinterpret_cast<T*>(data)[i] = static_cast<T>(values[i]);
}

void store_doubles(std::span<const double> values, DType dtype, std::byte* data) {
  if (is_number(dtype)) {
    with_number(dtype, [&](auto zero) { store_as<decltype(zero)>(values, data); });
    return;
  }
  auto* bits = reinterpret_cast<uint16_t*>(data);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    bits[i] = dtype == DType::kFloat16 ? float_to_half(value) : float_to_bfloat16(value);
  }
}

}  // namespace

std::unique_ptr<Kernel> make_random(const Problem& problem, RandomElement element) {
  return make_kernel([problem, element](const KernelArgs& a) {
    const TensorDesc& desc = problem.out(0);
    const RandomDraw draw(problem.attributes, problem.node_seed, *a.step, desc.numel());
    constexpr int64_t kChunk = 256;
    const size_t size = dtype_size(desc.dtype);
    parallel_for((desc.numel() + kChunk - 1) / kChunk, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * kChunk; i < std::min(end * kChunk, desc.numel()); i += kChunk) {
        double values[kChunk];
        const int64_t n = std::min(kChunk, desc.numel() - i);
        for (int64_t k = 0; k < n; ++k) values[k] = element(problem, a, draw, i + k);
        store_doubles(std::span(values, static_cast<size_t>(n)), desc.dtype,
                      a.outputs[0].data + static_cast<size_t>(i) * size);
      }
    });
    return ok_status();
  });
}

std::vector<RefTensor> reference_random(const ReferenceContext& c, RandomElement element) {
  RefTensor y{c.output_descs[0], {}};
  Problem p{c.attributes, {}, c.output_descs, {}, c.node_seed};
  std::vector<std::vector<double>> values;
  std::vector<TensorView> views;
  values.reserve(c.inputs.size());
  for (const RefTensor& input : c.inputs) {
    values.push_back(input.values);
    views.push_back(
        {reinterpret_cast<std::byte*>(values.back().data()), {DType::kFloat64, input.desc.shape}});
    p.inputs.push_back(views.back().desc);
  }
  const RandomDraw draw(c.attributes, c.node_seed, c.step, y.desc.numel());
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    y.values.push_back(element(p, {views, {}, nullptr, &c.step}, draw, i));
  }
  return {y};
}

double float_at(const TensorView& view, int64_t i) {
  switch (view.desc.dtype) {
    case DType::kFloat32:
      return static_cast<double>(view.as<float>()[i]);
    case DType::kFloat64:
      return view.as<double>()[i];
    case DType::kFloat16:
      return static_cast<double>(half_to_float(view.as<uint16_t>()[i]));
    default:
      return static_cast<double>(bfloat16_to_float(view.as<uint16_t>()[i]));
  }
}

Result<DType> dtype_attribute(const Attributes& attributes, DType otherwise) {
  if (!attributes.has("dtype")) return otherwise;
  const DType dtype = dtype_of_number(attributes.i("dtype", 0));
  if (dtype == DType::kUndefined) {
    return input_error("dtype: expected a number of TensorProto.DataType, found {}",
                       attributes.i("dtype", 0));
  }
  return dtype;
}

}  // namespace ofsdp::kernels::ops
