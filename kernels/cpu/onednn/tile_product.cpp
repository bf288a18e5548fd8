#include <algorithm>
#include <vector>

#include "kernels/cpu/onednn/bridge.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"

namespace ofsdp::kernels {
namespace {

onednn::Desc matrices(DType dtype, int64_t count, int64_t rows, int64_t columns, bool transposed) {
  onednn::Dims dims{rows, columns};
  onednn::Dims strides = transposed ? onednn::Dims{1, rows} : onednn::Dims{columns, 1};
  if (count > 1) {
    dims.insert(dims.begin(), count);
    strides.insert(strides.begin(), rows * columns);
  }
  return onednn::strided(dtype, dims, strides);
}

// A primitive is made for the current thread count; these are for one.
class OneThread {
 public:
  OneThread() : before_(pool_threads()) { set_pool_threads(1); }
  ~OneThread() { set_pool_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

dnnl::primitive_attr attributes_of(const TileSize& s) {
  dnnl::post_ops ops;
  if (s.alpha != 1) {
    ops.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(s.alpha), 0.0f);
  }
  if (s.accumulate) ops.append_sum(1.0f);
  dnnl::primitive_attr made = onednn::attributes();
  made.set_post_ops(ops);
  return made;
}

}  // namespace

template <typename T>
struct TileProduct<T>::State {
  struct Slot {
    dnnl::memory a, b, dst, scratch;
    std::vector<dnnl_exec_arg_t> arguments;
    dnnl::stream stream;
  };
  dnnl::matmul primitive;
  size_t scratch_bytes = 0;
  std::vector<Slot> slots;
  bool empty = false;
  int64_t zeros = 0;  // elements whose sum is empty
};

template <typename T>
TileProduct<T>::TileProduct(const TileSize& s, int slots) : state_(std::make_shared<State>()) {
  state_->empty = s.count * s.rows * s.inner * s.columns == 0;
  if (s.inner == 0 && !s.accumulate) state_->zeros = s.count * s.rows * s.columns;
  if (state_->empty) return;
  const OneThread one;
  constexpr DType kType = std::is_same_v<T, float> ? DType::kFloat32 : DType::kBFloat16;
  const auto a = matrices(kType, s.count, s.rows, s.inner, s.transpose_a);
  const auto b = matrices(kType, s.count, s.inner, s.columns, s.transpose_b);
  const auto dst = matrices(DType::kFloat32, s.count, s.rows, s.columns, false);
  const dnnl::primitive_attr attributes = attributes_of(s);
  const auto pd = onednn::first_quiet(
      [&] { return dnnl::matmul::primitive_desc(onednn::engine(), a, b, dst, attributes, true); });
  OFSDP_CHECK(pd.get(true) != nullptr, "no product of {} x {} x {}", s.rows, s.inner, s.columns);
  state_->primitive = dnnl::matmul(pd);
  const onednn::Desc scratch = pd.scratchpad_desc();
  state_->scratch_bytes = scratch.get_size();
  auto memory = [](const onednn::Desc& desc) {
    return dnnl::memory(desc, onednn::engine(), DNNL_MEMORY_NONE);
  };
  for (int i = 0; i < slots; ++i) {
    typename State::Slot slot{memory(a),       memory(b), memory(dst),
                              memory(scratch), {},        dnnl::stream(onednn::engine())};
    slot.arguments = {{DNNL_ARG_SRC, slot.a.get()},
                      {DNNL_ARG_WEIGHTS, slot.b.get()},
                      {DNNL_ARG_DST, slot.dst.get()},
                      {DNNL_ARG_SCRATCHPAD, slot.scratch.get()}};
    state_->slots.push_back(std::move(slot));
  }
}

template <typename T>
bool TileProduct<T>::is_available() {
  if (std::is_same_v<T, float>) return true;
  return onednn::has_isa(dnnl::cpu_isa::avx512_core_bf16) && onednn::has_type(DType::kBFloat16);
}

template <typename T>
size_t TileProduct<T>::scratch_bytes() const {
  return state_->scratch_bytes;
}

template <typename T>
void TileProduct<T>::run(int slot, const T* a, const T* b, float* dst, std::byte* scratch) const {
  if (state_->empty) {
    std::fill_n(dst, state_->zeros, 0.0f);
    return;
  }
  const typename State::Slot& s = state_->slots[static_cast<size_t>(slot)];
  dnnl_memory_set_data_handle(s.a.get(), const_cast<T*>(a));
  dnnl_memory_set_data_handle(s.b.get(), const_cast<T*>(b));
  dnnl_memory_set_data_handle(s.dst.get(), dst);
  dnnl_memory_set_data_handle(s.scratch.get(), scratch);
  const dnnl_status_t status =
      dnnl_primitive_execute(state_->primitive.get(), s.stream.get(),
                             static_cast<int>(s.arguments.size()), s.arguments.data());
  OFSDP_CHECK(status == dnnl_success, "oneDNN could not run a product: status {}", int{status});
}

template class TileProduct<float>;
template class TileProduct<BFloat16>;

}  // namespace ofsdp::kernels
