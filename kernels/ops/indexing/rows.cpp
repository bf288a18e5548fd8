// OneHot, ReverseSequence and TensorScatter: operators in which an input of indices or lengths
// decides which row of the output gets which value.
//
// OneHot(indices, depth, values), attribute axis: values = [off, on]; a new axis with `depth`
// elements holds `on` at the index and `off` elsewhere. If an index is outside -depth..depth-1, all
// are `off`. values may have any dtype, indices any numeric dtype. No gradient.
// https://onnx.ai/onnx/operators/onnx__OneHot.html

#include "kernels/core/element_types.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace one_hot {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const Constant* depth = c.constant(1);
  if (depth == nullptr || depth->desc.numel() != 1) {
    return input_error("input 'depth' must be one number known before the run, found {}",
                       c.inputs[1].text());
  }
  if (c.inputs[2].numel() != 2) {
    return input_error("input 'values': expected [off, on], found {}", c.inputs[2].text());
  }
  const double n = first_double(*depth);
  if (!(n >= 0 && n < 0x1p40))
    return input_error("input 'depth': expected at least 0, found {}", n);
  std::vector<int64_t> axes = c.inputs[0].shape.axes();
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", -1), c.inputs[0].shape.rank() + 1));
  axes.insert(axes.begin() + axis, static_cast<int64_t>(n));
  OFSDP_RETURN_IF_ERROR(checked_numel(axes).status());
  return std::vector{TensorDesc{c.inputs[2].dtype, Shape(axes)}};
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const Lines lines = lines_along(y.desc.shape, c.attributes.i("axis", -1));
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    const int64_t line = i / (lines.n * lines.inner) * lines.inner + i % lines.inner;
    const auto index = static_cast<int64_t>(c.inputs[0][line]);
    const int64_t k = i / lines.inner % lines.n;
    y.values.push_back(c.inputs[2].values[k == index || k == index + lines.n ? 1 : 0]);
  }
  return {y};
}

// Reads indices begin .. begin + n - 1 of any numeric type.
using ReadIndices = void (*)(const std::byte* indices, int64_t begin, int64_t n, int64_t* to);

ReadIndices reader(DType dtype) {
  return with_number(dtype, []<typename T>(T) -> ReadIndices {
    return [](const std::byte* indices, int64_t begin, int64_t n, int64_t* to) {
      const T* from = reinterpret_cast<const T*>(indices) + begin;
      for (int64_t i = 0; i < n; ++i) to[i] = static_cast<int64_t>(from[i]);
    };
  });
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Lines lines = lines_along(p.out(0).shape, p.attributes.i("axis", -1));
  return with_bits(dtype_size(p.out(0).dtype), [&]<typename T>(T) {
    return make_kernel([lines, read = reader(p.in(0).dtype)](const KernelArgs& a) {
      const T off = a.in<T>(2)[0], on = a.in<T>(2)[1];
      for_line_blocks(lines, [&](int64_t o, int64_t begin, int64_t end) {
        for (int64_t k = 0; k < lines.n; ++k) {
          T* y = a.out<T>(0) + lines.at(o, k, 0);
          std::fill(y + begin, y + end, off);
        }
        int64_t indices[kLineBlock];
        read(a.inputs[0].data, o * lines.inner + begin, end - begin, indices);
        for (int64_t j = begin; j < end; ++j) {
          const int64_t index = indices[j - begin], k = index < 0 ? index + lines.n : index;
          if (k >= 0 && k < lines.n) a.out<T>(0)[lines.at(o, k, j)] = on;
        }
      });
    });
  });
}

}  // namespace one_hot

void add_one_hot(Registry& registry) {
  using namespace one_hot;
  registry.add(make_op("OneHot", {infer, nullptr, reference},
                       with_half_floats<accepts_plain_numbers, create>("lines"),
                       {.min_inputs = 3, .first_opset = 9, .constant_inputs = {1}}));
}

// ReverseSequence(x, sequence_lens), attributes batch_axis, time_axis: for each batch entry b,
// reverses the first sequence_lens[b] steps along the time axis; the others stay. Any dtype. dx
// reverses dy the same way. https://onnx.ai/onnx/operators/onnx__ReverseSequence.html

namespace reverse_sequence {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const int64_t batch = c.attributes.i("batch_axis", 1);
  const int64_t time = c.attributes.i("time_axis", 0);
  const bool batch_first = batch == 0 && time == 1;
  const bool time_first = batch == 1 && time == 0;
  if (!(batch_first || time_first) || x.shape.rank() < 2) {
    return input_error(
        "expected batch_axis and time_axis 0 and 1 of at least two axes, found {}, {} of {}", batch,
        time, x.text());
  }
  const TensorDesc lengths{DType::kInt64, {x.shape[static_cast<int>(batch)]}};
  if (c.inputs[1] != lengths) {
    return input_error("expected sequence_lens {}, found {}", lengths.text(), c.inputs[1].text());
  }
  return std::vector{TensorDesc{x.dtype, x.shape}};
}

void grad(GradBuilder& b) {
  b.set_grad(0, b.emit1("ReverseSequence", {b.grad_output(0), b.input(1)}, b.attributes()));
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], {}};
  const auto time = static_cast<size_t>(c.attributes.i("time_axis", 0));
  for (int64_t i = 0; i < y.desc.numel(); ++i) {
    auto index = unravel(y.desc.shape, i);
    const auto length = static_cast<int64_t>(c.inputs[1][index[1 - time]]);
    if (index[time] < length) index[time] = length - 1 - index[time];
    y.values.push_back(c.inputs[0].values[ravel(y.desc.shape, index)]);
  }
  return {y};
}

Status check_lengths(const int64_t* lengths, int64_t count, int64_t most) {
  for (int64_t b = 0; b < count; ++b) {
    if (lengths[b] >= 0 && lengths[b] <= most) continue;
    return input_error("sequence_lens[{}] is {}, expected 0..{}", b, lengths[b], most);
  }
  return ok_status();
}

std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const bool time_first = p.attributes.i("time_axis", 0) == 0;
  const int64_t steps = shape[time_first ? 0 : 1];
  const int64_t batch = shape[time_first ? 1 : 0];
  const int64_t bytes =
      shape.numel(2, shape.rank()) * static_cast<int64_t>(dtype_size(p.out(0).dtype));
  return make_kernel([=](const KernelArgs& a) {
    const auto* lengths = a.in<int64_t>(1);
    OFSDP_RETURN_IF_ERROR(check_lengths(lengths, batch, steps));
    parallel_each(steps * batch, 65536 / (bytes + 1) + 1, [&](int64_t row) {
      const int64_t t = time_first ? row / batch : row % steps;
      const int64_t b = time_first ? row % batch : row / steps;
      const int64_t from = t < lengths[b] ? lengths[b] - 1 - t : t;
      const int64_t at = time_first ? from * batch + b : b * steps + from;
      std::memcpy(a.outputs[0].data + row * bytes, a.inputs[0].data + at * bytes,
                  static_cast<size_t>(bytes));
    });
    return ok_status();
  });
}

}  // namespace reverse_sequence

void add_reverse_sequence(Registry& registry) {
  using namespace reverse_sequence;
  registry.add(make_op("ReverseSequence", {infer, grad, reference},
                       {{"rows", accepts_plain, create}}, {.min_inputs = 2, .first_opset = 10}));
}

// TensorScatter(past_cache, update, write_indices), attributes axis, mode: writes the update into
// the cache along the axis, from write_indices[batch entry] on (0 if absent; axis 0 is the batch).
// If mode is circular, it wraps around the end. Any dtype. No gradient: generation uses it for
// caches.
// https://onnx.ai/onnx/operators/onnx__TensorScatter.html

namespace tensor_scatter {

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& cache = c.inputs[0];
  OFSDP_ASSIGN_OR_RETURN(const int axis,
                         normalize_axis(c.attributes.i("axis", -2), cache.shape.rank()));
  Shape like = c.inputs[1].shape;
  const bool fits =
      axis > 0 && like.rank() == cache.shape.rank() && like[axis] <= cache.shape[axis];
  if (fits) like[axis] = cache.shape[axis];
  if (!fits || like != cache.shape || c.inputs[1].dtype != cache.dtype) {
    return input_error("expected an update that is not longer than {} along axis {} > 0, found {}",
                       cache.text(), axis, c.inputs[1].text());
  }
  const TensorDesc indices{DType::kInt64, {cache.shape[0]}};
  if (c.has(2) && c.inputs[2] != indices) {
    return input_error("expected write_indices {}, found {}", indices.text(), c.inputs[2].text());
  }
  return std::vector{TensorDesc{cache.dtype, cache.shape}};
}

bool circular(const Attributes& attributes) { return attributes.s("mode", "linear") == "circular"; }

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y{c.output_descs[0], c.inputs[0].values};
  const int axis = *normalize_axis(c.attributes.i("axis", -2), y.desc.shape.rank());
  for (size_t i = 0; i < c.inputs[1].values.size(); ++i) {
    auto index = unravel(c.inputs[1].desc.shape, static_cast<int64_t>(i));
    int64_t& at = index[static_cast<size_t>(axis)];
    if (c.inputs.size() > 2) at += static_cast<int64_t>(c.inputs[2][index[0]]);
    if (circular(c.attributes)) at %= y.desc.shape[axis];
    y.values[ravel(y.desc.shape, index)] = c.inputs[1].values[i];
  }
  return {y};
}

struct Written {
  Lines cache, update;
  int64_t per_batch;  // outer lines of the cache per batch entry
  int64_t bytes;      // per step
  bool circular;

  Status check(const int64_t* indices) const {
    const int64_t most = circular ? INT64_MAX : cache.n - update.n;
    for (int64_t b = 0; indices != nullptr && b * per_batch < cache.outer; ++b) {
      if (indices[b] >= 0 && indices[b] <= most) continue;
      return input_error("write_indices[{}] is {}, expected 0..{}", b, indices[b], most);
    }
    return ok_status();
  }
  void run(const std::byte* from, const int64_t* indices, std::byte* to) const {
    for (int64_t o = 0; o < cache.outer && bytes > 0; ++o) {
      const int64_t first =
          indices == nullptr ? 0 : indices[o / per_batch] % std::max<int64_t>(cache.n, 1);
      for (int64_t k = 0; k < update.n; ++k) {
        std::memcpy(to + (o * cache.n + (first + k) % cache.n) * bytes,
                    from + (o * update.n + k) * bytes, static_cast<size_t>(bytes));
      }
    }
  }
};

std::unique_ptr<Kernel> create(const Problem& p) {
  const Shape& shape = p.out(0).shape;
  const int64_t axis = p.attributes.i("axis", -2);
  const Lines cache = lines_along(shape, axis);
  const Written w{cache, lines_along(p.in(1).shape, axis),
                  std::max<int64_t>(cache.outer / std::max<int64_t>(shape[0], 1), 1),
                  cache.inner * static_cast<int64_t>(dtype_size(p.out(0).dtype)),
                  circular(p.attributes)};
  return make_kernel([w, placed = p.has_in(2), all = p.out(0).bytes()](const KernelArgs& a) {
    const int64_t* indices = placed ? a.in<int64_t>(2) : nullptr;
    OFSDP_RETURN_IF_ERROR(w.check(indices));
    std::byte* y = a.outputs[0].data;
    if (all > 0 && y != a.inputs[0].data) std::memcpy(y, a.inputs[0].data, all);
    w.run(a.inputs[1].data, indices, y);
    return ok_status();
  });
}

}  // namespace tensor_scatter

void add_tensor_scatter(Registry& registry) {
  using namespace tensor_scatter;
  registry.add(make_op("TensorScatter", {infer, nullptr, reference},
                       {{"rows", accepts_plain, create}},
                       {.min_inputs = 2, .first_opset = 24, .inplace_inputs = {0}}));
}

}  // namespace ofsdp::kernels::ops
