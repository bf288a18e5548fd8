// One thread per element written, or per 16-byte pack of channels if rows allow.
#include <algorithm>

#include "kernels/cuda/conv/windows.cuh"

namespace ofsdp::kernels::cuda {
namespace {

// One thread per element of columns; padding becomes 0.
template <typename T, typename I>
OFSDP_CUDA_KERNEL im2col_kernel(Windows<I> w, int64_t image_step, const T* x, T* columns) {
  const I out = volume(w.out), taps = volume(w.kernel);
  const I i = thread_index<I>();
  if (i >= w.images * w.channels * taps * out) return;
  I o[3];
  unravel(w.out, i % out, o);
  const I row = i / out, plane = row / taps;
  const I at = seen(w, o, Tap<I>::of(w, row % taps));
  const T* from = x + plane / w.channels * image_step + plane % w.channels * volume(w.in);
  columns[i] = at < 0 ? Stored<T>::from(0.0f) : from[at];
}

// One thread per input element, which sums over taps in order.
template <typename T, typename I>
OFSDP_CUDA_KERNEL col2im_kernel(Windows<I> w, int64_t image_step, const T* columns, T* dx) {
  const I out = volume(w.out), in = volume(w.in), taps = volume(w.kernel);
  const I i = thread_index<I>();
  if (i >= w.images * w.channels * in) return;
  const I plane = i / in;
  I at[3];
  unravel(w.in, i % in, at);
  float sum = 0;
  for (Tap<I> tap; tap.number < taps; tap.next(w)) {
    const I o = seer(w, at, tap);
    if (o >= 0) sum += to_float(columns[(plane * taps + tap.number) * out + o]);
  }
  dx[plane / w.channels * image_step + plane % w.channels * in + i % in] = Stored<T>::from(sum);
}

// One thread per V channels.
template <typename T, int V, typename I>
OFSDP_CUDA_KERNEL im2row_kernel(Windows<I> w, const T* x, T* columns) {
  const I out = volume(w.out), taps = volume(w.kernel), in = volume(w.in);
  const I packs = w.channels / V;
  const I i = thread_index<I>();
  if (i >= w.images * out * taps * packs) return;
  const I row = i / packs, output = row / taps, channel = (i - row * packs) * V;
  I o[3];
  unravel(w.out, output % out, o);
  const I at = seen(w, o, Tap<I>::of(w, row % taps));
  Pack<T, V> made;
  unrolled<V>([&](int k) { made.v[k] = Stored<T>::from(0.0f); });
  const I from = (output / out * in + at) * w.channels + channel;
  if (at >= 0) made = *reinterpret_cast<const Pack<T, V>*>(x + from);
  *reinterpret_cast<Pack<T, V>*>(columns + i * V) = made;
}

// One thread per V channels of an input position, which sums over taps in order.
template <typename T, int V, typename I>
OFSDP_CUDA_KERNEL row2im_kernel(Windows<I> w, const T* columns, T* dx) {
  const I out = volume(w.out), in = volume(w.in), taps = volume(w.kernel);
  const I packs = w.channels / V;
  const I i = thread_index<I>();
  if (i >= w.images * in * packs) return;
  const I position = i / packs, channel = (i - position * packs) * V;
  I at[3];
  unravel(w.in, position % in, at);
  float sum[V] = {}, more[V];
  for (Tap<I> tap; tap.number < taps; tap.next(w)) {
    const I o = seer(w, at, tap);
    if (o < 0) continue;
    load<V>(columns + ((position / in * out + o) * taps + tap.number) * w.channels + channel, more);
    unrolled<V>([&](int k) { sum[k] += more[k]; });
  }
  store<V>(dx + i * V, sum);
}

// Calls f(Windows<int32_t or int64_t>, T{}), sized for x and columns.
template <typename F>
cudaError_t with_columns(const WindowParams& w, const F& f) {
  const int64_t all = w.images * w.channels;
  const int64_t most = all * std::max(volume(w.in), volume(w.kernel) * volume(w.out));
  return with_windows(w, most, f);
}

}  // namespace

cudaError_t move_columns(const WindowParams& w, bool back, int64_t image_step, const void* from,
                         void* to, cudaStream_t stream) {
  const int64_t n =
      w.images * w.channels * (back ? volume(w.in) : volume(w.kernel) * volume(w.out));
  return with_columns(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    return over(n, stream, back ? col2im_kernel<T, I> : im2col_kernel<T, I>, windows, image_step,
                from, to);
  });
}

cudaError_t move_rows(const WindowParams& w, bool back, const void* from, void* to,
                      cudaStream_t stream) {
  const int64_t n =
      w.images * w.channels * (back ? volume(w.in) : volume(w.kernel) * volume(w.out));
  return with_columns(w, [&]<typename I, typename T>(const Windows<I>& windows, T) {
    constexpr int V = kPack<T>;
    return launch_over_packs<V>(aligned16(w.channels, sizeof(T), from, to), n, stream,
                                back ? row2im_kernel<T, V, I> : im2row_kernel<T, V, I>,
                                back ? row2im_kernel<T, 1, I> : im2row_kernel<T, 1, I>, windows,
                                from, to);
  });
}

}  // namespace ofsdp::kernels::cuda
