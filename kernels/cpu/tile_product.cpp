#include "kernels/cpu/tile_product.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"

namespace ofsdp {
namespace {

onednn::Desc matrix(int64_t rows, int64_t columns, bool transposed) {
  const onednn::Dims strides = transposed ? onednn::Dims{1, rows} : onednn::Dims{columns, 1};
  return onednn::strided(DType::kFloat32, {rows, columns}, strides);
}

// A primitive is made for the threads there are; these are for one.
class OneThread {
 public:
  OneThread() : before_(pool_threads()) { set_pool_threads(1); }
  ~OneThread() { set_pool_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace

struct TileProduct<float>::State {
  struct Slot {
    dnnl::memory a, b, dst, scratch;
    std::vector<dnnl_exec_arg_t> arguments;
    dnnl::stream stream;
  };
  dnnl::matmul primitive;
  size_t scratch_bytes = 0;
  std::vector<Slot> slots;
  bool empty = false;
  int64_t zeros = 0;  // elements of a sum over nothing
};

TileProduct<float>::TileProduct(const TileSize& s, int slots) : state_(std::make_shared<State>()) {
  state_->empty = s.rows * s.inner * s.columns == 0;
  if (s.inner == 0 && !s.accumulate) state_->zeros = s.rows * s.columns;
  if (state_->empty) return;
  const OneThread one;
  const auto a = matrix(s.rows, s.inner, s.transpose_a);
  const auto b = matrix(s.inner, s.columns, s.transpose_b);
  const auto dst = matrix(s.rows, s.columns, false);
  dnnl::primitive_attr attributes = onednn::attributes();
  if (s.accumulate) {
    dnnl::post_ops ops;
    ops.append_sum(1.0f);
    attributes.set_post_ops(ops);
  }
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
    State::Slot slot{memory(a),       memory(b), memory(dst),
                     memory(scratch), {},        dnnl::stream(onednn::engine())};
    slot.arguments = {{DNNL_ARG_SRC, slot.a.get()},
                      {DNNL_ARG_WEIGHTS, slot.b.get()},
                      {DNNL_ARG_DST, slot.dst.get()},
                      {DNNL_ARG_SCRATCHPAD, slot.scratch.get()}};
    state_->slots.push_back(std::move(slot));
  }
}

size_t TileProduct<float>::scratch_bytes() const { return state_->scratch_bytes; }

void TileProduct<float>::run(int slot, const float* a, const float* b, float* dst,
                             std::byte* scratch) const {
  if (state_->empty) {
    std::fill_n(dst, state_->zeros, 0.0f);
    return;
  }
  const State::Slot& s = state_->slots[static_cast<size_t>(slot)];
  dnnl_memory_set_data_handle(s.a.get(), const_cast<float*>(a));
  dnnl_memory_set_data_handle(s.b.get(), const_cast<float*>(b));
  dnnl_memory_set_data_handle(s.dst.get(), dst);
  dnnl_memory_set_data_handle(s.scratch.get(), scratch);
  const dnnl_status_t status =
      dnnl_primitive_execute(state_->primitive.get(), s.stream.get(),
                             static_cast<int>(s.arguments.size()), s.arguments.data());
  OFSDP_CHECK(status == dnnl_success, "oneDNN could not run a product: status {}", int{status});
}

void TileProduct<double>::run(int, const double* a, const double* b, double* dst,
                              std::byte*) const {
  const TileSize& s = size_;
  for (int64_t i = 0; i < s.rows; ++i) {
    for (int64_t j = 0; j < s.columns; ++j) {
      double sum = s.accumulate ? dst[i * s.columns + j] : 0;
      for (int64_t k = 0; k < s.inner; ++k) {
        sum += a[s.transpose_a ? k * s.rows + i : i * s.inner + k] *
               b[s.transpose_b ? j * s.inner + k : k * s.columns + j];
      }
      dst[i * s.columns + j] = sum;
    }
  }
}

}  // namespace ofsdp
