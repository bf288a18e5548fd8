// GridSample(X [N, C, spatial], grid [N, places, axes]): y[n, c, p] = the sum over pixels i of
// x[n, c, i] times the product of w(g, i) over the axes. g is the axis's coordinate in grid[n, p],
// innermost axis first; w is the weight of the nearest pixel, or of the linear or cubic kernel. X
// has 4 or 5 axes.
//
//   dX[n, c, i]    = sum of dy[n, c, p] times the same products, added in place order:
//                    ofsdp.GridSampleGradInput(dy, grid), x_shape
//   dgrid[n, p, a] = sum over c and i of dy[n, c, p] x[n, c, i] times the product in which axis a
//                    has the factor dw/dg: ofsdp.GridSampleGradGrid(dy, X, grid); 0 for nearest
//
// https://onnx.ai/onnx/operators/onnx__GridSample.html

#include "kernels/ops/shape/grid_sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "kernels/core/kernel.h"
#include "kernels/cpu/float_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/formulas/cubic.h"
#include "kernels/ops/indexing/gather_scatter.h"
#include "kernels/ops/operators.h"
#include "kernels/ops/support.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kGridPlaces = 16;    // resolved together
constexpr int64_t kGridReads = 64;     // per place: four pixels along each of three axes
constexpr int64_t kGridChannels = 16;  // per thread at a time

// The pixels that a block of places reads, with the products of their weights. Place p reads
// first[p] .. first[p + 1] - 1.
template <typename T>
struct GridReads {
  std::array<int64_t, kGridPlaces * kGridReads> at;
  std::array<T, kGridPlaces * kGridReads> weight;
  std::array<int64_t, kGridPlaces + 1> first;

  // `grid` has coordinates for `count` places. Axis `derived` contributes its slope instead of its
  // weight; -1: none. The order of the reads does not depend on it.
  void set(const GridParams& e, const T* grid, int64_t count, int derived) {
    const size_t axes = e.axes.size();
    used_ = 0;
    for (int64_t p = 0; p < count; ++p) {
      first[static_cast<size_t>(p)] = used_;
      std::array<GridTaps, 3> taps;
      for (size_t axis = 0; axis < axes; ++axis) {
        const T* row = grid + p * static_cast<int64_t>(axes);
        taps[axis] = grid_taps(e.axes[axis], static_cast<double>(row[axes - 1 - axis]));
        if (static_cast<int>(axis) == derived) {
          std::copy_n(taps[axis].slope, taps[axis].count, taps[axis].weight);
        }
      }
      add_reads(e, taps, 0, 0, 1);
    }
    first[static_cast<size_t>(count)] = used_;
  }

 private:
  void add_reads(const GridParams& e, const std::array<GridTaps, 3>& taps, size_t axis,
                 int64_t pixel, double product) {
    if (axis == taps.size() || axis == e.axes.size()) {
      at[static_cast<size_t>(used_)] = pixel;
      weight[static_cast<size_t>(used_++)] = static_cast<T>(product);
      return;
    }
    for (int k = 0; k < taps[axis].count; ++k) {
      add_reads(e, taps, axis + 1, pixel * e.axes[axis].size + taps[axis].index[k],
                product * taps[axis].weight[k]);
    }
  }

  int64_t used_ = 0;
};

// Calls f(place, read) for everything that `count` places read.
template <typename T>
void for_each_read(const GridReads<T>& reads, int64_t count, const auto& f) {
  for (int64_t p = 0; p < count; ++p) {
    for (int64_t k = reads.first[static_cast<size_t>(p)];
         k < reads.first[static_cast<size_t>(p) + 1]; ++k) {
      f(p, static_cast<size_t>(k));
    }
  }
}

struct GridBlock {
  int64_t image, begin, count;
};

// Calls f(block) for all blocks of places; threads share them.
void for_each_block(const GridParams& e, const auto& f) {
  const int64_t blocks = (e.places + kGridPlaces - 1) / kGridPlaces;
  const int64_t work = kGridPlaces * (16 + 4 * e.channels);
  parallel_each(e.images * blocks, kElementGrain / work + 1, [&](int64_t i) {
    const int64_t begin = i % blocks * kGridPlaces;
    f(GridBlock{i / blocks, begin, std::min(kGridPlaces, e.places - begin)});
  });
}

template <typename T>
std::unique_ptr<Kernel> make_sample(const GridParams& e) {
  return make_kernel([e](const KernelArgs& a) {
    const auto axes = static_cast<int64_t>(e.axes.size());
    for_each_block(e, [&](const GridBlock& b) {
      GridReads<T> reads;
      reads.set(e, a.in<T>(1) + (b.image * e.places + b.begin) * axes, b.count, -1);
      for (int64_t plane = b.image * e.channels; plane < (b.image + 1) * e.channels; ++plane) {
        const T* x = a.in<T>(0) + plane * e.pixels;
        T* y = a.out<T>(0) + plane * e.places + b.begin;
        std::fill_n(y, b.count, T{0});
        for_each_read(reads, b.count,
                      [&](int64_t p, size_t k) { y[p] += reads.weight[k] * x[reads.at[k]]; });
      }
    });
  });
}

// A thread has whole planes, so places are added in order.
template <typename T>
std::unique_ptr<Kernel> make_grad_input(const GridParams& e) {
  return make_kernel([e](const KernelArgs& a) {
    const auto axes = static_cast<int64_t>(e.axes.size());
    const int64_t groups = (e.channels + kGridChannels - 1) / kGridChannels;
    parallel_each(e.images * groups, 1, [&](int64_t i) {
      const int64_t image = i / groups, channel = i % groups * kGridChannels;
      const int64_t first = image * e.channels + channel;
      const int64_t planes = std::min(kGridChannels, e.channels - channel);
      std::fill_n(a.out<T>(0) + first * e.pixels, planes * e.pixels, T{0});
      GridReads<T> reads;
      for (int64_t begin = 0; begin < e.places; begin += kGridPlaces) {
        const int64_t count = std::min(kGridPlaces, e.places - begin);
        reads.set(e, a.in<T>(1) + (image * e.places + begin) * axes, count, -1);
        for (int64_t plane = first; plane < first + planes; ++plane) {
          const T* dy = a.in<T>(0) + plane * e.places + begin;
          T* dx = a.out<T>(0) + plane * e.pixels;
          for_each_read(reads, count,
                        [&](int64_t p, size_t k) { dx[reads.at[k]] += reads.weight[k] * dy[p]; });
        }
      }
    });
  });
}

// sums[k] = dy at the place times x at the pixel, summed over channels.
template <typename T>
void sum_channels(const GridParams& e, const GridBlock& b, const GridReads<T>& reads,
                  const KernelArgs& a, T* sums) {
  std::fill_n(sums, reads.first[static_cast<size_t>(b.count)], T{0});
  for (int64_t plane = b.image * e.channels; plane < (b.image + 1) * e.channels; ++plane) {
    const T* dy = a.in<T>(0) + plane * e.places + b.begin;
    const T* x = a.in<T>(1) + plane * e.pixels;
    for_each_read(reads, b.count, [&](int64_t p, size_t k) { sums[k] += dy[p] * x[reads.at[k]]; });
  }
}

// Sums the channels once per read, then weights them for each axis.
template <typename T>
std::unique_ptr<Kernel> make_grad_grid(const GridParams& e) {
  return make_kernel([e](const KernelArgs& a) {
    const auto axes = static_cast<int64_t>(e.axes.size());
    for_each_block(e, [&](const GridBlock& b) {
      const int64_t row = (b.image * e.places + b.begin) * axes;
      GridReads<T> reads;
      std::array<T, kGridPlaces * kGridReads> sums;
      T* d = a.out<T>(0) + row;
      std::fill_n(d, b.count * axes, T{0});
      for (int64_t axis = 0; axis < axes; ++axis) {
        reads.set(e, a.in<T>(2) + row, b.count, static_cast<int>(axis));
        if (axis == 0) sum_channels(e, b, reads, a, sums.data());
        for_each_read(reads, b.count, [&](int64_t p, size_t k) {
          d[p * axes + axes - 1 - axis] += reads.weight[k] * sums[k];
        });
      }
    });
  });
}

// --- kernels: plain float32 or float64; threads share outputs, never a sum ---

std::unique_ptr<Kernel> make_grid_sample(const Problem& p) {
  const GridParams e = grid_extent(p.attributes, p.in(0).shape, p.in(1).shape);
  return p.in(0).dtype == DType::kFloat64 ? make_sample<double>(e) : make_sample<float>(e);
}
std::unique_ptr<Kernel> make_grid_sample_grad_input(const Problem& p) {
  const GridParams e = grid_extent(p.attributes, p.out(0).shape, p.in(1).shape);
  return p.in(0).dtype == DType::kFloat64 ? make_grad_input<double>(e) : make_grad_input<float>(e);
}
std::unique_ptr<Kernel> make_grid_sample_grad_grid(const Problem& p) {
  const GridParams e = grid_extent(p.attributes, p.in(1).shape, p.in(2).shape);
  return p.in(0).dtype == DType::kFloat64 ? make_grad_grid<double>(e) : make_grad_grid<float>(e);
}

}  // namespace

// --- the operators ---

namespace grid_sample {

Status check_text(const Attributes& attributes, const char* name, const char* otherwise,
                  const std::set<std::string>& known) {
  const std::string found = attributes.s(name, otherwise);
  if (known.contains(found)) return ok_status();
  std::string list;
  for (const std::string& text : known) list += (list.empty() ? "" : ", ") + text;
  return input_error("attribute '{}': expected one of {}, found '{}'", name, list, found);
}

Status check_operands(const TensorDesc& x, const TensorDesc& grid) {
  const int rank = x.shape.rank();
  if (rank != 4 && rank != 5) {
    return input_error("expected X [N, C, H, W] or [N, C, D, H, W], found {}", x.text());
  }
  if (grid.shape.rank() != rank || grid.shape[0] != x.shape[0] ||
      grid.shape[rank - 1] != rank - 2) {
    return input_error("expected a grid of {} axes, [{}, ..., {}], for X {}, found {}", rank,
                       x.shape[0], rank - 2, x.text(), grid.text());
  }
  if (grid.dtype != x.dtype) {
    return input_error("expected X and grid of one type, found {} and {}", x.text(), grid.text());
  }
  if (x.shape.numel(2, rank) == 0 && grid.numel() > 0) {
    return input_error("expected X with pixels, found {}", x.text());
  }
  return ok_status();
}

Result<std::vector<TensorDesc>> infer(const InferContext& c) {
  const TensorDesc& x = c.inputs[0];
  const TensorDesc& grid = c.inputs[1];
  OFSDP_RETURN_IF_ERROR(check_text(c.attributes, "mode", "linear", {"linear", "nearest", "cubic"}));
  OFSDP_RETURN_IF_ERROR(
      check_text(c.attributes, "padding_mode", "zeros", {"zeros", "border", "reflection"}));
  OFSDP_RETURN_IF_ERROR(check_operands(x, grid));
  std::vector<int64_t> y = grid.shape.axes();
  y.pop_back();
  y.insert(y.begin() + 1, x.shape[1]);
  return std::vector{TensorDesc{x.dtype, Shape(y)}};
}

void grad(GradBuilder& b) {
  const Ref dy = b.grad_output(0), x = b.input(0), grid = b.input(1);
  Attributes attributes = b.attributes();
  if (b.needs_grad(1)) {
    const bool flat = attributes.s("mode", "linear") == "nearest";
    b.set_grad(1, flat ? ops::zeros(b, b.desc(grid))
                       : b.emit1("ofsdp.GridSampleGradGrid", {dy, x, grid}, attributes));
  }
  if (b.needs_grad(0)) {
    attributes.set("x_shape", b.desc(x).shape.axes());
    b.set_grad(0, b.emit1("ofsdp.GridSampleGradInput", {dy, grid}, attributes));
  }
}

// --- reference: weights of all pixels on an axis ---

struct Line {
  std::vector<double> weight, slope;
};

// Mirrors and clamps u; multiplies `slope` by the derivative.
double moved(const std::string& padding, bool corners, double size, double u, double& slope) {
  if (padding == "zeros") return u;
  const double begin = corners ? 0 : -0.5, end = corners ? size - 1 : size - 0.5;
  if (padding == "reflection" && begin == end) u = begin;
  while (padding == "reflection" && (u < begin || u > end)) {
    u = u < begin ? 2 * begin - u : 2 * end - u;
    slope = -slope;
  }
  if (u <= 0 || u >= size - 1) slope = 0;
  return std::clamp(u, 0.0, size - 1);
}

Line line_of(const Attributes& a, int64_t pixels, double g) {
  const std::string mode = a.s("mode", "linear"), padding = a.s("padding_mode", "zeros");
  const bool corners = a.i("align_corners", 0) != 0;
  const auto size = static_cast<double>(pixels);
  double slope = corners ? (size - 1) / 2 : size / 2;
  double u = corners ? (g + 1) / 2 * (size - 1) : ((g + 1) * size - 1) / 2;
  Line line{std::vector<double>(static_cast<size_t>(pixels)),
            std::vector<double>(static_cast<size_t>(pixels))};
  if (mode == "cubic") {
    for (double tap = std::floor(u) - 1; tap <= std::floor(u) + 2; ++tap) {
      double unused = 0;
      const double at = moved(padding, corners, size, tap, unused);
      if (at < 0 || at >= size) continue;
      line.weight[static_cast<size_t>(at)] += cubic_weight(u - tap, -0.75);
      line.slope[static_cast<size_t>(at)] += slope * cubic_slope(u - tap, -0.75);
    }
    return line;
  }
  u = moved(padding, corners, size, u, slope);
  for (size_t i = 0; i < line.weight.size(); ++i) {
    const double x = u - static_cast<double>(i);
    if (mode == "nearest") {
      line.weight[i] = std::nearbyint(u) == static_cast<double>(i) ? 1 : 0;
    } else if (x >= -1 && x < 1) {
      line.weight[i] = 1 - std::abs(x);
      line.slope[i] = x < 0 ? slope : -slope;
    }
  }
  return line;
}

// Calls f(image, place, pixel, factors) for every pair, with each axis's weight and slope.
void for_each_pair(const ReferenceContext& c, const Shape& x, const RefTensor& grid,
                   const auto& f) {
  const int axes = x.rank() - 2;
  const int64_t places = grid.desc.shape.numel(1, axes + 1);
  const Shape image(std::vector(x.axes().begin() + 2, x.axes().end()));
  for (int64_t row = 0; row < x[0] * places; ++row) {
    std::vector<Line> lines;
    for (int axis = 0; axis < axes; ++axis) {
      lines.push_back(line_of(c.attributes, image[axis], grid[row * axes + axes - 1 - axis]));
    }
    for (int64_t pixel = 0; pixel < image.numel(); ++pixel) {
      const auto at = unravel(image, pixel);
      std::vector<std::pair<double, double>> factors;
      for (size_t axis = 0; axis < lines.size(); ++axis) {
        const auto i = static_cast<size_t>(at[axis]);
        factors.emplace_back(lines[axis].weight[i], lines[axis].slope[i]);
      }
      f(row / places, row % places, pixel, factors);
    }
  }
}

// Returns the product of the weights; axis `derived` contributes the slope instead. -1: none.
double product(const std::vector<std::pair<double, double>>& factors, int derived = -1) {
  double made = 1;
  for (size_t axis = 0; axis < factors.size(); ++axis) {
    made *= static_cast<int>(axis) == derived ? factors[axis].second : factors[axis].first;
  }
  return made;
}

std::vector<RefTensor> reference(const ReferenceContext& c) {
  RefTensor y = zeros(c.output_descs[0]);
  const RefTensor& x = c.inputs[0];
  const GridParams e = grid_extent(c.attributes, x.desc.shape, c.inputs[1].desc.shape);
  for_each_pair(c, x.desc.shape, c.inputs[1],
                [&](int64_t n, int64_t place, int64_t pixel, const auto& factors) {
                  for (int64_t plane = n * e.channels; plane < (n + 1) * e.channels; ++plane) {
                    y[plane * e.places + place] += product(factors) * x[plane * e.pixels + pixel];
                  }
                });
  return {y};
}

std::vector<RefTensor> grad_input_reference(const ReferenceContext& c) {
  RefTensor dx = zeros(c.output_descs[0]);
  const RefTensor& dy = c.inputs[0];
  const GridParams e = grid_extent(c.attributes, dx.desc.shape, c.inputs[1].desc.shape);
  for_each_pair(c, dx.desc.shape, c.inputs[1],
                [&](int64_t n, int64_t place, int64_t pixel, const auto& factors) {
                  for (int64_t plane = n * e.channels; plane < (n + 1) * e.channels; ++plane) {
                    dx[plane * e.pixels + pixel] += product(factors) * dy[plane * e.places + place];
                  }
                });
  return {dx};
}

std::vector<RefTensor> grad_grid_reference(const ReferenceContext& c) {
  RefTensor dgrid = zeros(c.output_descs[0]);
  const RefTensor& dy = c.inputs[0];
  const RefTensor& x = c.inputs[1];
  const GridParams e = grid_extent(c.attributes, x.desc.shape, c.inputs[2].desc.shape);
  const auto axes = static_cast<int64_t>(e.axes.size());
  for_each_pair(c, x.desc.shape, c.inputs[2],
                [&](int64_t n, int64_t place, int64_t pixel, const auto& factors) {
                  double sum = 0;
                  for (int64_t plane = n * e.channels; plane < (n + 1) * e.channels; ++plane) {
                    sum += dy[plane * e.places + place] * x[plane * e.pixels + pixel];
                  }
                  for (int64_t axis = 0; axis < axes; ++axis) {
                    dgrid[(n * e.places + place) * axes + axes - 1 - axis] +=
                        sum * product(factors, static_cast<int>(axis));
                  }
                });
  return {dgrid};
}

Acceptance accepts(const Problem& p) {
  const DType dtype = p.in(0).dtype;
  if (dtype != DType::kFloat32 && dtype != DType::kFloat64) {
    return Acceptance::refuse("not float32 or float64");
  }
  return accept_if(p.all_dtype(dtype) && p.all_plain(), kNotPlain);
}

}  // namespace grid_sample

void add_grid_sample(Registry& registry) {
  using namespace grid_sample;
  registry.add(make_op("GridSample", {infer, grad, reference},
                       with_half_floats<accepts, make_grid_sample>("places"),
                       {.min_inputs = 2, .first_opset = 16}));
  registry.add_own(
      make_op("GridSampleGradInput", {infer_shape_of("x_shape"), nullptr, grad_input_reference},
              with_half_floats<accepts, make_grid_sample_grad_input>("planes"), {.min_inputs = 2}));
  registry.add_own(
      make_op("GridSampleGradGrid", {infer_like_inputs({2}), nullptr, grad_grid_reference},
              with_half_floats<accepts, make_grid_sample_grad_grid>("places"), {.min_inputs = 3}));
}

}  // namespace ofsdp::kernels::ops
