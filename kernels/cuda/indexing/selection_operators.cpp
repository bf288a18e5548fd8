// Operators that search, move or rank elements (selection.h).
#include <algorithm>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/operands.h"
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/indexing/selection.h"

namespace ofsdp::kernels::cuda {
namespace {

// --- Searches ---

FoundParams found_params(const TensorDesc& x, bool fills) {
  return {.n = x.numel(),
          .size = dtype_size(x.dtype),
          .floats = is_32_or_16_bit_float(x.dtype) || x.dtype == DType::kFloat64,
          .fills = fills};
}

Acceptance accepts_found(const Problem& p) {
  return accept({plain(p), up_to(p.in(0).shape.rank() <= kMaxAxes),
                 supported(dtype_size(p.in(0).dtype) <= 8)});
}

// Runs for empty x too, since the count must be written.
std::unique_ptr<CudaKernel> create_found(DeviceState&, const Problem& p) {
  const FoundParams e = found_params(p.in(0), true);
  std::vector<int64_t> shape = p.in(0).shape.axes();
  if (shape.empty()) shape.push_back(1);
  const bool own = !p.has_out(0);
  const size_t scratch = row_bytes(static_cast<int64_t>(found_scratch(e) / sizeof(int64_t)));
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        auto* const y =
            own ? reinterpret_cast<int64_t*>(at(l.workspace, scratch)) : l.out<int64_t>(0);
        OFSDP_CUDA_TRY(found_positions(e, l.in(0), y, l.out<int64_t>(1), l.workspace, stream));
        if (own) return cudaSuccess;
        return split_positions(e.n, shape.data(), static_cast<int>(shape.size()), y, stream);
      },
      scratch + (own ? static_cast<size_t>(e.n) * sizeof(int64_t) : 0));
}

Acceptance accepts_indices(const Problem& p) {
  return accept({plain(p), up_to(p.attributes.ints("dims").size() <= size_t{kMaxAxes})});
}

std::unique_ptr<CudaKernel> create_indices(DeviceState&, const Problem& p) {
  const Lines lines = lines_along(p.in(0).shape, p.attributes.i("axis", 0));
  const std::vector<int64_t> dims = p.attributes.ints("dims");
  ScatterIndexParams e{.numel = p.in(0).numel(),
                       .n = lines.n,
                       .inner = lines.inner,
                       .factor = p.attributes.i("factor", 1),
                       .components = static_cast<int>(dims.size())};
  std::ranges::copy(dims, e.dims);
  return make_cuda_kernel([e](cudaStream_t stream, const Launch& l) {
    return scatter_indices(e, l.in<int64_t>(0), l.in<int64_t>(1), l.out<int64_t>(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_required(DeviceState&, const Problem& p) {
  return make_cuda_kernel([factor = p.attributes.i("factor", 1),
                           expected = p.attributes.i("expected", 0),
                           bytes = p.in(0).bytes()](cudaStream_t stream, const Launch& l) {
    OFSDP_CUDA_TRY(require_count(l.in<int64_t>(1), factor, expected, l.fault(), stream));
    return copy_bytes(l.out(0), l.in(0), bytes, stream);
  });
}

// Compress is a Gather with the positions where the condition holds.
Acceptance accepts_compress(const Problem& p) {
  return accept({plain(p), known(p, 1), some(p.in(0))});
}

std::unique_ptr<CudaKernel> create_compress(DeviceState&, const Problem& p) {
  const TensorDesc& x = p.in(0);
  const Lines lines = p.attributes.has("axis") ? lines_along(x.shape, p.attributes.i("axis", 0))
                                               : Lines{1, x.numel(), 1};
  const FoundParams found = found_params(p.in(1), false);
  GatherParams e{.outer = lines.outer, .n = lines.n, .inner = lines.inner};
  e.count = p.out(0).numel() / std::max<int64_t>(lines.outer * lines.inner, 1);
  const size_t positions = row_bytes(found.n);
  return make_cuda_kernel(
      [=, size = dtype_size(x.dtype)](cudaStream_t stream, const Launch& l) mutable {
        auto* const kept = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(
            found_positions(found, l.in(1), kept, nullptr, at(l.workspace, positions), stream));
        e.indices = kept;
        return gather(e, size, l.in(0), l.out(0), stream);
      },
      positions + found_scratch(found));
}

// All four outputs are written, wanted or not. Runs for empty x too: the number of groups is 0.
std::unique_ptr<CudaKernel> create_unique(DeviceState&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  const Lines lines =
      p.attributes.has("axis") ? lines_along(x, p.attributes.i("axis", 0)) : Lines{1, x.numel(), 1};
  const UniqueParams e{.dtype = p.in(0).dtype,
                       .outer = lines.outer,
                       .n = lines.n,
                       .inner = lines.inner,
                       .sorted = p.attributes.i("sorted", 1) != 0};
  const size_t each = row_bytes(std::max<int64_t>(e.n, 1)), scratch = round_up(unique_scratch(e));
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        int64_t* outputs[4];
        for (size_t i = 0; i < 4; ++i) {
          auto* const own = reinterpret_cast<int64_t*>(at(l.workspace, scratch + i * each));
          outputs[i] = l.out<int64_t>(i) != nullptr ? l.out<int64_t>(i) : own;
        }
        return find_unique(e, l.in(0), outputs[0], outputs[1], outputs[2], outputs[3], l.workspace,
                           stream);
      },
      scratch + 4 * each);
}

Acceptance accepts_unique(const Problem& p) {
  return accept({plain(p), supported(supports_unique(p.in(0).dtype))});
}

// --- Sequences ---

std::unique_ptr<CudaKernel> create_reverse(DeviceState&, const Problem& p) {
  const Shape& x = p.in(0).shape;
  const bool time_first = p.attributes.i("time_axis", 0) == 0;
  ReverseParams e{.steps = x[time_first ? 0 : 1],
                  .batch = x[time_first ? 1 : 0],
                  .bytes = x.numel(2, x.rank()) * static_cast<int64_t>(dtype_size(p.in(0).dtype)),
                  .time_first = time_first};
  return make_cuda_kernel([e](cudaStream_t stream, const Launch& l) mutable {
    e.lengths = l.in<int64_t>(1);
    e.fault = l.fault();
    return reverse_sequence(e, l.in(0), l.out(0), stream);
  });
}

std::unique_ptr<CudaKernel> create_cache(DeviceState&, const Problem& p) {
  const Shape& cache = p.out(0).shape;
  const int64_t axis = p.attributes.i("axis", -2);
  const Lines lines = lines_along(cache, axis);
  CacheParams e{.outer = lines.outer,
                .n = lines_along(p.in(1).shape, axis).n,
                .size = lines.n,
                .bytes = lines.inner * static_cast<int64_t>(dtype_size(p.out(0).dtype)),
                .per_batch = std::max<int64_t>(lines.outer / std::max<int64_t>(cache[0], 1), 1),
                .circular = p.attributes.s("mode", "linear") == "circular"};
  return make_cuda_kernel(
      [e, bytes = p.out(0).bytes()](cudaStream_t stream, const Launch& l) mutable {
        e.first = l.in<int64_t>(2);
        e.fault = l.fault();
        OFSDP_CUDA_TRY(copy_bytes(l.out(0), l.in(0), bytes, stream));
        return write_cache(e, l.in(1), l.out(0), stream);
      });
}

// --- TopK, ArgMax, ArgMin, Hardmax ---

TopParams top_params(const Problem& p, int64_t default_axis) {
  const Lines lines = lines_along(p.in(0).shape, p.attributes.i("axis", default_axis));
  return {.dtype = p.in(0).dtype, .outer = lines.outer, .n = lines.n, .inner = lines.inner};
}

std::unique_ptr<CudaKernel> make_top(const TopParams& e, bool values) {
  return make_cuda_kernel(
      [=](cudaStream_t stream, const Launch& l) {
        return top(e, l.in(0), values ? l.out(0) : nullptr, l.out<int64_t>(values ? 1 : 0),
                   l.workspace, stream);
      },
      top_scratch(e));
}

Acceptance accepts_top(const Problem& p) {
  return accept({plain(p), supported(supports_top(p.in(0).dtype)), known(p, 1)});
}

std::unique_ptr<CudaKernel> create_top(DeviceState&, const Problem& p) {
  TopParams e = top_params(p, -1);
  e.k = known_ints(p, 1)[0];
  e.largest = p.attributes.i("largest", 1) != 0;
  return make_top(e, true);
}

CudaImplementation arg_extreme(const char* op, bool largest) {
  return {op, "own",
          [](const Problem& p) {
            return accept({plain(p), supported(supports_top(p.in(0).dtype)), some(p.in(0))});
          },
          [=](DeviceState&, const Problem& p) {
            TopParams e = top_params(p, 0);
            e.largest = largest;
            e.last = p.attributes.i("select_last_index", 0) != 0;
            e.nan_first = true;
            return make_top(e, false);
          }};
}

std::unique_ptr<CudaKernel> create_hardmax(DeviceState&, const Problem& p) {
  const TopParams e = top_params(p, -1);
  return make_cuda_kernel(
      [e](cudaStream_t stream, const Launch& l) {
        auto* const indices = static_cast<int64_t*>(l.workspace);
        OFSDP_CUDA_TRY(top(e, l.in(0), nullptr, indices, nullptr, stream));
        return mark_index(e, indices, l.out(0), stream);
      },
      static_cast<size_t>(e.outer * e.inner) * sizeof(int64_t));
}

}  // namespace

void add_selections(CudaImplementations& list) {
  list.insert(list.end(), {{"ofsdp.FoundIndices", "own", accepts_found, create_found},
                           {"ofsdp.FoundUnique", "own", accepts_unique, create_unique},
                           {"ofsdp.ScatterIndices", "own", accepts_indices, create_indices},
                           {"ofsdp.RequireCount", "own", accepts_plain, create_required},
                           {"Compress", "own", accepts_compress, create_compress},
                           {"ReverseSequence", "own", accepts_plain, create_reverse},
                           {"TensorScatter", "own", accepts_plain, create_cache},
                           {"TopK", "own", accepts_top, create_top},
                           arg_extreme("ArgMax", true),
                           arg_extreme("ArgMin", false),
                           {"Hardmax", "own", accepts_plain_floats, create_hardmax}});
}

}  // namespace ofsdp::kernels::cuda
