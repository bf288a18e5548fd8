#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/ops/shape/grid_sample.h"

namespace ofsdp::kernels::ops {
namespace {

constexpr int64_t kGridPlaces = 16;    // that are resolved at once
constexpr int64_t kGridReads = 64;     // of a place: four pixels along each of three axes
constexpr int64_t kGridChannels = 16;  // for a thread at a time

// The pixels that a block of places reads, with the products of their weights. Reads of place p are
// first[p] .. first[p + 1] - 1.
template <typename T>
struct GridReads {
  std::array<int64_t, kGridPlaces * kGridReads> at;
  std::array<T, kGridPlaces * kGridReads> weight;
  std::array<int64_t, kGridPlaces + 1> first;

  // `grid` has the coordinates of `count` places. The factor of axis `derived` is its slope; -1:
  // none. The order of the reads does not depend on it.
  void set(const GridExtent& e, const T* grid, int64_t count, int derived) {
    const size_t axes = e.axes.size();
    used_ = 0;
    for (int64_t p = 0; p < count; ++p) {
      first[static_cast<size_t>(p)] = used_;
      std::array<GridTaps, 3> taps;
      for (size_t axis = 0; axis < axes; ++axis) {
        const T* row = grid + p * static_cast<int64_t>(axes);
        taps[axis] = taps_at(e.axes[axis], static_cast<double>(row[axes - 1 - axis]));
        if (static_cast<int>(axis) == derived) taps[axis].weight = taps[axis].slope;
      }
      add_reads(e, taps, 0, 0, 1);
    }
    first[static_cast<size_t>(count)] = used_;
  }

 private:
  void add_reads(const GridExtent& e, const std::array<GridTaps, 3>& taps, size_t axis,
                 int64_t pixel, double product) {
    if (axis == taps.size() || axis == e.axes.size()) {
      at[static_cast<size_t>(used_)] = pixel;
      weight[static_cast<size_t>(used_++)] = static_cast<T>(product);
      return;
    }
    for (size_t k = 0; k < static_cast<size_t>(taps[axis].count); ++k) {
      add_reads(e, taps, axis + 1, pixel * e.axes[axis].size + taps[axis].index[k],
                product * taps[axis].weight[k]);
    }
  }

  int64_t used_ = 0;
};

// f(place, read) for the reads of `count` places.
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

// f(block of places) for all of them, shared among the threads.
void for_each_block(const GridExtent& e, const auto& f) {
  const int64_t blocks = (e.places + kGridPlaces - 1) / kGridPlaces;
  const int64_t work = kGridPlaces * (16 + 4 * e.channels);
  parallel_each(e.images * blocks, kElementGrain / work + 1, [&](int64_t i) {
    const int64_t begin = i % blocks * kGridPlaces;
    f(GridBlock{i / blocks, begin, std::min(kGridPlaces, e.places - begin)});
  });
}

template <typename T>
std::unique_ptr<Kernel> make_sample(const GridExtent& e) {
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

// A thread has whole planes, so places are added in their order.
template <typename T>
std::unique_ptr<Kernel> make_grad_input(const GridExtent& e) {
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

// sums[k] = the sum over channels of dy at the place times x at the pixel.
template <typename T>
void sum_channels(const GridExtent& e, const GridBlock& b, const GridReads<T>& reads,
                  const KernelArgs& a, T* sums) {
  std::fill_n(sums, reads.first[static_cast<size_t>(b.count)], T{0});
  for (int64_t plane = b.image * e.channels; plane < (b.image + 1) * e.channels; ++plane) {
    const T* dy = a.in<T>(0) + plane * e.places + b.begin;
    const T* x = a.in<T>(1) + plane * e.pixels;
    for_each_read(reads, b.count, [&](int64_t p, size_t k) { sums[k] += dy[p] * x[reads.at[k]]; });
  }
}

// The channels are summed once for each read, then weighted for each axis.
template <typename T>
std::unique_ptr<Kernel> make_grad_grid(const GridExtent& e) {
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

}  // namespace

std::unique_ptr<Kernel> make_grid_sample(const Problem& p) {
  const GridExtent e = grid_extent(p.attributes, p.in(0).shape, p.in(1).shape);
  return p.in(0).dtype == DType::kFloat64 ? make_sample<double>(e) : make_sample<float>(e);
}
std::unique_ptr<Kernel> make_grid_sample_grad_input(const Problem& p) {
  const GridExtent e = grid_extent(p.attributes, p.out(0).shape, p.in(1).shape);
  return p.in(0).dtype == DType::kFloat64 ? make_grad_input<double>(e) : make_grad_input<float>(e);
}
std::unique_ptr<Kernel> make_grid_sample_grad_grid(const Problem& p) {
  const GridExtent e = grid_extent(p.attributes, p.in(1).shape, p.in(2).shape);
  return p.in(0).dtype == DType::kFloat64 ? make_grad_grid<double>(e) : make_grad_grid<float>(e);
}

}  // namespace ofsdp::kernels::ops
