// Data movement operators (movement.h). Strided copies: Transpose, Slice and its gradient, Concat,
// Split, Expand, Tile, Pad, layout changes. Others: Trilu, OneHot, ConstantOfShape,
// ofsdp.KeepCounted, ofsdp.JoinRows.
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/shape/movement.h"

namespace ofsdp::kernels::cuda {
namespace {

// A strided copy between an input and an output, with byte offsets.
struct Copy {
  std::vector<int64_t> shape, from, to;
  int64_t from_offset = 0, to_offset = 0;
  size_t input = 0, output = 0;
};

std::unique_ptr<CudaKernel> make_copies(std::vector<Copy> copies, size_t size) {
  return make_cuda_kernel([copies = std::move(copies), size](cudaStream_t stream, const Launch& l) {
    for (const Copy& c : copies) {
      const auto* from = l.in<std::byte>(c.input) + c.from_offset;
      auto* to = l.out<std::byte>(c.output) + c.to_offset;
      OFSDP_CUDA_TRY(strided_copy(size, c.shape, c.from, c.to, from, to, stream));
    }
    return cudaSuccess;
  });
}

std::unique_ptr<CudaKernel> create_transpose(DeviceState&, const Problem& p) {
  const std::vector<int64_t> from = dense_strides(p.in(0).shape.axes());
  std::vector<int64_t> order = p.attributes.ints("perm");
  if (order.empty()) {
    for (size_t i = from.size(); i > 0; --i) order.push_back(static_cast<int64_t>(i - 1));
  }
  std::vector<int64_t> src;
  for (const int64_t axis : order) {
    src.push_back(from[static_cast<size_t>(axis < 0 ? axis + p.in(0).shape.rank() : axis)]);
  }
  const std::vector<int64_t> shape = p.out(0).shape.axes();
  return make_copies({{shape, src, dense_strides(shape)}}, dtype_size(p.in(0).dtype));
}

std::unique_ptr<CudaKernel> create_expand(DeviceState&, const Problem& p) {
  const std::vector<int64_t> shape = p.out(0).shape.axes();
  return make_copies(
      {{shape, broadcast_strides(p.in(0).shape.axes(), shape), dense_strides(shape)}},
      dtype_size(p.in(0).dtype));
}

// Each axis of x becomes two axes of y: repetition and element.
std::unique_ptr<CudaKernel> create_tile(DeviceState&, const Problem& p) {
  const std::vector<int64_t>&x = p.in(0).shape.axes(), &y = p.out(0).shape.axes();
  const std::vector<int64_t> strides = dense_strides(x);
  std::vector<int64_t> shape, from;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    shape.insert(shape.end(), {y[axis] / x[axis], x[axis]});
    from.insert(from.end(), {0, strides[axis]});
  }
  return make_copies({{shape, from, dense_strides(shape)}}, dtype_size(p.in(0).dtype));
}

// [N, C, H b, W b] and [N, C b b, H, W] as six axes: N, C, H, block row, W, block column.
CudaImplementation blocks(const char* op, bool to_depth) {
  return {op, "own", accepts_plain, [to_depth](DeviceState&, const Problem& p) {
            const Shape& whole = to_depth ? p.in(0).shape : p.out(0).shape;
            const int64_t b = p.attributes.i("blocksize", 1);
            const int64_t n = whole[0], c = whole[1], h = whole[2] / b, w = whole[3] / b;
            const bool crd = p.attributes.s("mode", "DCR") == "CRD";
            const int64_t channel = crd ? b * b * h * w : h * w;
            const int64_t block = crd ? h * w : c * h * w;  // stride between block columns
            const std::vector<int64_t> shape{n, c, h, b, w, b},
                space{c * h * b * w * b, h * b * w * b, b * w * b, w * b, b, 1},
                depth{c * b * b * h * w, channel, w, b * block, 1, block};
            return make_copies({{shape, to_depth ? space : depth, to_depth ? depth : space}},
                               dtype_size(p.in(0).dtype));
          }};
}

Acceptance accepts_reorder(const Problem& p) {
  return accept_if(p.in(0).shape == p.out(0).shape, "shapes differ");
}

std::unique_ptr<CudaKernel> create_reorder(DeviceState&, const Problem& p) {
  return make_copies({{p.out(0).shape.axes(), strides_of(p.in(0)), strides_of(p.out(0))}},
                     dtype_size(p.out(0).dtype));
}

Acceptance accepts_copy(const Problem& p) {
  return accept_if(p.in(0) == p.out(0), "operands differ in shape, dtype or layout");
}

std::unique_ptr<CudaKernel> create_copy(DeviceState&, const Problem& p) {
  return make_cuda_kernel([bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) {
    return cudaMemcpyAsync(l.out(0), l.in(0), bytes, cudaMemcpyDeviceToDevice, stream);
  });
}

std::unique_ptr<CudaKernel> create_concat(DeviceState&, const Problem& p) {
  const TensorDesc& y = p.out(0);
  const auto axis = static_cast<size_t>(axis_of(p.attributes, "axis", 0, y.shape.rank()));
  const std::vector<int64_t> strides = dense_strides(y.shape.axes());
  const size_t size = dtype_size(y.dtype);
  std::vector<Copy> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const std::vector<int64_t>& shape = p.in(i).shape.axes();
    Copy part{shape, dense_strides(shape), strides};
    part.to_offset = begin * strides[axis] * static_cast<int64_t>(size);
    part.input = i;
    if (p.in(i).numel() > 0) parts.push_back(std::move(part));
    begin += shape[axis];
  }
  return make_copies(std::move(parts), size);
}

// Sizes along the axis: given, or equal but for the last one.
std::vector<int64_t> split_sizes(const Problem& p, int64_t n) {
  if (p.has_in(1)) return known_ints(p, 1);
  const int64_t count = p.attributes.i("num_outputs", 1), size = (n + count - 1) / count;
  std::vector<int64_t> sizes(static_cast<size_t>(count), size);
  sizes.back() = n - size * (count - 1);
  return sizes;
}

std::unique_ptr<CudaKernel> create_split(DeviceState&, const Problem& p) {
  const TensorDesc& x = p.in(0);
  const auto axis = static_cast<size_t>(axis_of(p.attributes, "axis", 0, x.shape.rank()));
  const std::vector<int64_t> strides = dense_strides(x.shape.axes());
  const std::vector<int64_t> sizes = split_sizes(p, x.shape.axes()[axis]);
  const size_t size = dtype_size(x.dtype);
  std::vector<Copy> parts;
  int64_t begin = 0;
  for (size_t i = 0; i < p.outputs.size(); ++i) {
    if (p.has_out(i) && p.out(i).numel() > 0) {
      const std::vector<int64_t>& shape = p.out(i).shape.axes();
      Copy part{shape, strides, dense_strides(shape)};
      part.from_offset = begin * strides[axis] * static_cast<int64_t>(size);
      part.output = i;
      parts.push_back(std::move(part));
    }
    begin += sizes[i];
  }
  return make_copies(std::move(parts), size);
}

// A slice of `data`: elements starts + i * steps along each axis.
struct Cut {
  std::vector<int64_t> starts, steps;
};

// kernels/ops/shape/concat.cpp has checked the values.
Cut cut_of(const Problem& p) {
  const Shape& data = p.in(0).shape;
  const std::vector<int64_t> starts = known_ints(p, 1), axes = known_ints(p, 3),
                             steps = known_ints(p, 4);
  const auto rank = static_cast<size_t>(data.rank());
  Cut cut{std::vector<int64_t>(rank, 0), std::vector<int64_t>(rank, 1)};
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t named = axes.empty() ? static_cast<int64_t>(i) : axes[i];
    const auto axis = static_cast<size_t>(named < 0 ? named + data.rank() : named);
    const int64_t n = data.axes()[axis], step = steps.empty() ? 1 : steps[i];
    const int64_t start = starts[i] < 0 ? starts[i] + n : starts[i];
    const int64_t last = step > 0 ? n : std::max<int64_t>(n - 1, 0);
    cut.starts[axis] = std::clamp<int64_t>(start, 0, last);
    cut.steps[axis] = step;
  }
  return cut;
}

// The slice's strides in the data, and the byte offset of its first element.
Copy sliced(const Cut& cut, const std::vector<int64_t>& slice, const std::vector<int64_t>& data,
            size_t size) {
  const std::vector<int64_t> strides = dense_strides(data);
  Copy copy{slice, {}, dense_strides(slice)};
  for (size_t axis = 0; axis < slice.size(); ++axis) {
    // A huge step along an axis with one element could overflow; it is never taken.
    copy.from.push_back(slice[axis] > 1 ? strides[axis] * cut.steps[axis] : 0);
    copy.from_offset += cut.starts[axis] * strides[axis] * static_cast<int64_t>(size);
  }
  return copy;
}

Acceptance accepts_slice(const Problem& p) {
  return accept({plain(p), known(p, 1), known(p, 2), known(p, 3), known(p, 4)});
}

std::unique_ptr<CudaKernel> create_slice(DeviceState&, const Problem& p) {
  const size_t size = dtype_size(p.in(0).dtype);
  return make_copies({sliced(cut_of(p), p.out(0).shape.axes(), p.in(0).shape.axes(), size)}, size);
}

// Clears the output and copies the input into a part of it; `inner` describes the opposite copy,
// out of the output.
std::unique_ptr<CudaKernel> make_copy_into(Copy inner, size_t size, size_t bytes, bool any) {
  std::swap(inner.from, inner.to);
  std::swap(inner.from_offset, inner.to_offset);
  return make_cuda_kernel([=](cudaStream_t stream, const Launch& l) {
    OFSDP_CUDA_TRY(cudaMemsetAsync(l.out(0), 0, bytes, stream));
    if (!any) return cudaSuccess;
    return strided_copy(size, inner.shape, inner.from, inner.to,
                        l.in<std::byte>(0) + inner.from_offset,
                        l.out<std::byte>(0) + inner.to_offset, stream);
  });
}

std::unique_ptr<CudaKernel> create_slice_grad(DeviceState&, const Problem& p) {
  const Cut cut{p.attributes.ints("starts"), p.attributes.ints("steps")};
  const size_t size = dtype_size(p.in(0).dtype);
  return make_copy_into(sliced(cut, p.in(0).shape.axes(), p.out(0).shape.axes(), size), size,
                        p.out(0).bytes(), p.in(0).numel() > 0);
}

Acceptance accepts_pad(const Problem& p) {
  return accept({plain(p),
                 {p.attributes.s("mode", "constant") == "constant", "the padding is not constant"},
                 known(p, 1),
                 known(p, 3)});
}

std::unique_ptr<CudaKernel> create_pad(DeviceState&, const Problem& p) {
  const Pads pads = known_pads(p);
  const std::vector<int64_t>& data = p.in(0).shape.axes();
  const auto size = dtype_size(p.in(0).dtype);
  Copy inner{{}, dense_strides(data), dense_strides(p.out(0).shape.axes())};
  bool any = true;
  for (size_t axis = 0; axis < data.size(); ++axis) {
    const int64_t before = pads.before[axis], after = pads.after[axis];
    inner.shape.push_back(data[axis] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0));
    any = any && inner.shape.back() > 0;
    const auto bytes = static_cast<int64_t>(size);
    inner.from_offset += std::max<int64_t>(-before, 0) * inner.from[axis] * bytes;
    inner.to_offset += std::max<int64_t>(before, 0) * inner.to[axis] * bytes;
  }
  const std::vector<int64_t> y = p.out(0).shape.axes(), none(y.size(), 0);
  return make_cuda_kernel([=, value = p.has_in(2), bytes = p.out(0).bytes()](cudaStream_t stream,
                                                                             const Launch& l) {
    OFSDP_CUDA_TRY(value ? strided_copy(size, y, none, dense_strides(y), l.in(2), l.out(0), stream)
                         : cudaMemsetAsync(l.out(0), 0, bytes, stream));
    if (!any) return cudaSuccess;
    return strided_copy(size, inner.shape, inner.from, inner.to,
                        l.in<std::byte>(0) + inner.from_offset,
                        l.out<std::byte>(0) + inner.to_offset, stream);
  });
}

// Centres the common part of x and y in both; zeros around it.
std::unique_ptr<CudaKernel> create_centre(DeviceState&, const Problem& p) {
  const std::vector<int64_t>&x = p.in(0).shape.axes(), &y = p.out(0).shape.axes();
  const size_t size = dtype_size(p.in(0).dtype);
  // From y to x: make_copy_into swaps the sides.
  Copy inner{{}, dense_strides(y), dense_strides(x)};
  bool any = true;
  for (size_t axis = 0; axis < x.size(); ++axis) {
    const int64_t more = y[axis] - x[axis], cut = std::abs(more) / 2;
    inner.shape.push_back(std::min(x[axis], y[axis]));
    any = any && inner.shape.back() > 0;
    int64_t& offset = more < 0 ? inner.to_offset : inner.from_offset;
    offset += cut * (more < 0 ? inner.to : inner.from)[axis] * static_cast<int64_t>(size);
  }
  return make_copy_into(inner, size, p.out(0).bytes(), any);
}

// --- Triangles, one-hot rows, filled tensors ---

Acceptance accepts_triangle(const Problem& p) { return accept({plain(p), known(p, 1)}); }

std::unique_ptr<CudaKernel> create_triangle(DeviceState&, const Problem& p) {
  const Shape& shape = p.out(0).shape;
  TriangleParams e;
  e.matrices = shape.numel(0, shape.rank() - 2);
  e.rows = shape[shape.rank() - 2];
  e.columns = shape[shape.rank() - 1];
  const int64_t limit = e.rows + e.columns;
  e.k = p.has_in(1) ? std::clamp(known_ints(p, 1)[0], -limit, limit) : 0;
  e.upper = p.attributes.i("upper", 1) != 0;
  return make_cuda_kernel(
      [e, size = dtype_size(p.out(0).dtype)](cudaStream_t stream, const Launch& l) {
        return triangle(e, size, l.in(0), l.out(0), stream);
      });
}

Acceptance accepts_one_hot(const Problem& p) {
  return accept({plain(p), supported(has_one_hot(p.in(0).dtype))});
}

std::unique_ptr<CudaKernel> create_one_hot(DeviceState&, const Problem& p) {
  const Lines lines = lines_along(p.out(0).shape, p.attributes.i("axis", -1));
  const OneHotParams e{lines.outer, lines.n, lines.inner, p.in(0).dtype};
  return make_cuda_kernel(
      [e, size = dtype_size(p.out(0).dtype)](cudaStream_t stream, const Launch& l) {
        return one_hot(e, size, l.in(0), l.in(2), l.out(0), stream);
      });
}

// Without a value: float32 zeros.
std::unique_ptr<CudaKernel> create_full(DeviceState&, const Problem& p) {
  const auto value = p.attributes.get<ConstantPtr>("value", nullptr);
  std::vector<std::byte> bytes(dtype_size(p.out(0).dtype));
  if (value != nullptr) bytes = std::vector<std::byte>(value->bytes.begin(), value->bytes.end());
  return make_cuda_kernel([bytes, n = p.out(0).numel()](cudaStream_t stream, const Launch& l) {
    return fill(bytes.size(), bytes.data(), l.out(0), n, stream);
  });
}

std::unique_ptr<CudaKernel> create_keep(DeviceState&, const Problem& p) {
  const Lines lines = lines_along(p.in(0).shape, p.attributes.i("axis", 0));
  return make_cuda_kernel([lines, factor = p.attributes.i("factor", 1),
                           size = dtype_size(p.in(0).dtype)](cudaStream_t stream, const Launch& l) {
    return keep_counted(lines.outer, lines.n, lines.inner, factor, l.in<int64_t>(1), size, l.in(0),
                        l.out(0), stream);
  });
}

Acceptance accepts_join(const Problem& p) {
  return accept({plain(p), supported(p.in(0).dtype == DType::kFloat32)});
}

std::unique_ptr<CudaKernel> create_join(DeviceState&, const Problem& p) {
  const Shape &x = p.in(0).shape, &y = p.out(0).shape;
  const JoinParams e{.ranks = y[0],
                     .part = y[1],
                     .header = JoinedRows::kHeader,
                     .rank = p.attributes.i("rank", 0),
                     .rows = x[0],
                     .width = x[1]};
  return make_cuda_kernel([e](cudaStream_t stream, const Launch& l) {
    return join_rows(e, l.in<float>(0), l.out<float>(0), stream);
  });
}

}  // namespace

void add_movement(CudaImplementations& list) {
  const auto accepts_any = [](const Problem&) { return Acceptance(true); };
  list.insert(list.end(), {{"Transpose", "own", accepts_plain, create_transpose},
                           {"Expand", "own", accepts_plain, create_expand},
                           {"Concat", "own", accepts_plain, create_concat},
                           {"Split", "own", accepts_plain, create_split},
                           {"Slice", "own", accepts_slice, create_slice},
                           {"ofsdp.SliceGrad", "own", accepts_plain, create_slice_grad},
                           {"Tile", "own", accepts_plain, create_tile},
                           blocks("DepthToSpace", false),
                           blocks("SpaceToDepth", true),
                           {"CenterCropPad", "own", accepts_plain, create_centre},
                           {"Pad", "own", accepts_pad, create_pad},
                           {"ofsdp.Reorder", "own", accepts_reorder, create_reorder},
                           {"ofsdp.Copy", "cudart", accepts_copy, create_copy},
                           {"BitCast", "cudart", accepts_plain, create_copy},
                           {"Trilu", "own", accepts_triangle, create_triangle},
                           {"OneHot", "own", accepts_one_hot, create_one_hot},
                           {"ConstantOfShape", "own", accepts_any, create_full},
                           {"ofsdp.KeepCounted", "own", accepts_plain, create_keep},
                           {"ofsdp.JoinRows", "own", accepts_join, create_join}});
}

}  // namespace ofsdp::kernels::cuda
