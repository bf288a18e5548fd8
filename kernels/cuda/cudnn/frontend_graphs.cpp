// The only file that includes cudnn-frontend, which takes half a minute to compile.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <exception>
#include <functional>
#include <numeric>
#include <optional>

#include "kernels/cuda/cudnn/plan.h"
#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/device/libraries.h"

namespace ofsdp::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Graph;
using fe::graph::Tensor_attributes;
using Tensor = std::shared_ptr<Tensor_attributes>;
using Extents = std::vector<int64_t>;

fe::DataType_t frontend_type(DType dtype) {
  if (dtype == DType::kFloat16) return fe::DataType_t::HALF;
  return dtype == DType::kBFloat16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT;
}

// Builds a graph. Tensor uids are operand indices, counted from 1.
class GraphBuilder {
 public:
  GraphBuilder(const CudnnTarget& target, DType dtype) : graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(frontend_type(dtype))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    graph_->set_sm_version(target.capability);
    if (target.handle == nullptr) describe(target.properties);
  }

  Tensor input(int64_t place, const Extents& shape, const Extents& strides) {
    return graph_->tensor(Tensor_attributes().set_uid(place).set_dim(shape).set_stride(strides));
  }
  static Tensor output(Tensor tensor, int64_t place, const Extents& shape, const Extents& strides) {
    tensor->set_output(true).set_uid(place).set_dim(shape).set_stride(strides);
    return tensor;
  }
  Graph& graph() { return *graph_; }
  std::shared_ptr<Graph> take() { return std::move(graph_); }

 private:
  void describe(const std::string& properties) {
    auto device = std::make_shared<fe::DeviceProperties>();
    const std::vector<uint8_t> bytes(properties.begin(), properties.end());
    if (device->deserialize(bytes).is_good()) graph_->set_device_properties(device);
  }

  std::shared_ptr<Graph> graph_;
};

// Numerical notes of engines to exclude. Winograd and FFT round differently from a sum of products.
std::vector<fe::NumericalNote_t> unwanted(const CudnnTarget& target, DType dtype) {
  using Note = fe::NumericalNote_t;
  std::vector<Note> notes;
  if (!target.may_vary) notes.push_back(Note::NONDETERMINISTIC);
  if (dtype != DType::kFloat32) return notes;
  notes.insert(notes.end(), {Note::DOWN_CONVERT_INPUTS, Note::WINOGRAD, Note::FFT});
  if (!target.tf32) notes.push_back(Note::TENSOR_CORE);
  return notes;
}

class FrontendPlan final : public CudnnPlan {
 public:
  FrontendPlan(std::shared_ptr<Graph> graph, const CudnnTarget& target)
      : graph_(std::move(graph)), handle_(static_cast<cudnnHandle_t>(target.handle)) {}

  // Chooses an engine; returns false if there is none.
  bool choose_engine(const CudnnTarget& target, DType dtype) {
    if (graph_->validate().is_bad() || build().is_bad()) return false;
    const std::vector<fe::HeurMode_t> modes{fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};
    if (graph_->create_execution_plans(modes).is_bad()) return false;
    graph_->deselect_numeric_notes(unwanted(target, dtype));
    graph_->deselect_workspace_greater_than(target.max_workspace);
    if (graph_->build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE).is_bad()) return false;
    return graph_->get_workspace_size(workspace_).is_good() && workspace_ <= target.max_workspace;
  }

  size_t workspace_bytes() const override { return static_cast<size_t>(workspace_); }

  cudaError_t run(cudaStream_t stream, std::span<void*> operands, void* workspace) override {
    if (cudnnSetStream(handle_, stream) != CUDNN_STATUS_SUCCESS) return cudaErrorLaunchFailure;
    const auto count = static_cast<int>(operands.size());
    const bool good = graph_->execute(handle_, operands.data(), count, workspace).is_good();
    return good ? cudaGetLastError() : cudaErrorLaunchFailure;
  }

 private:
  fe::error_t build() {
    return handle_ == nullptr ? graph_->build_operation_graph()
                              : graph_->build_operation_graph(handle_);
  }

  std::shared_ptr<Graph> graph_;
  cudnnHandle_t handle_;
  int64_t workspace_ = 0;
};

// Returns null if the frontend throws or no engine fits.
template <typename Fill>
std::unique_ptr<CudnnPlan> plan(const CudnnTarget& target, DType dtype, Fill fill) {
  try {
    GraphBuilder builder(target, dtype);
    fill(builder);
    auto made = std::make_unique<FrontendPlan>(builder.take(), target);
    if (!made->choose_engine(target, dtype)) return nullptr;
    return made;
  } catch (const std::exception&) {
    return nullptr;
  }
}

// --- Attention: [batch, heads, rows, columns] with strides ---

Extents strides_of(const HeadStrides& s) { return {s.batch, s.head, s.row, 1}; }

struct AttentionShapes {
  explicit AttentionShapes(const AttentionParams& e)
      : q{e.batch, e.heads, e.queries, e.width},
        k{e.batch, e.kv_heads, e.keys, e.width},
        v{e.batch, e.kv_heads, e.keys, e.v_width},
        y{e.batch, e.heads, e.queries, e.v_width},
        statistics{e.batch, e.heads, e.queries, 1},
        statistics_strides{e.heads * e.queries, e.queries, 1, 1} {}
  Extents q, k, v, y, statistics, statistics_strides;
};

// cuDNN counts the query's own key in the window to its left.
std::optional<int64_t> keys_to_left(const AttentionParams& e) {
  return e.left < 0 ? std::nullopt : std::optional(e.left + 1);
}
std::optional<int64_t> keys_to_right(const AttentionParams& e) {
  if (e.causal) return 0;
  return e.right < 0 ? std::nullopt : std::optional(e.right);
}
fe::DiagonalAlignment_t alignment(const CudnnAttention& a) {
  const bool last = a.to_last_key || a.e.offset != 0;
  return last ? fe::DiagonalAlignment_t::BOTTOM_RIGHT : fe::DiagonalAlignment_t::TOP_LEFT;
}

// Inputs that describe the mask, from uid `first` on.
class MaskInputs {
 public:
  MaskInputs(GraphBuilder& b, const CudnnAttention& a, int64_t first) {
    if (a.mask == ops::MaskUse::kLengths) {
      for (int64_t i = 0; i < 2; ++i) {
        tensors_.push_back(b.input(first + i, {a.e.batch, 1, 1, 1}, {1, 1, 1, 1}));
        tensors_.back()->set_data_type(fe::DataType_t::INT32);
      }
    } else if (a.mask == ops::MaskUse::kBias) {
      const MaskBias& m = a.bias;
      tensors_.push_back(b.input(first, {m.batch, m.heads, m.rows, a.e.keys},
                                 {m.heads * m.rows * m.pitch, m.rows * m.pitch, m.pitch, 1}));
    }
  }
  int64_t count() const { return static_cast<int64_t>(tensors_.size()); }
  Tensor lengths(size_t which) const { return tensors_.size() == 2 ? tensors_[which] : nullptr; }
  Tensor bias() const { return tensors_.size() == 1 ? tensors_[0] : nullptr; }

 private:
  std::vector<Tensor> tensors_;
};

// Softcap and all that hides keys as parts of the graph: next to a softcap, cuDNN takes no settings
// for the latter.
class ScoreParts {
 public:
  ScoreParts(const CudnnAttention& a, MaskInputs inputs)
      : a_(a),
        inputs_(std::move(inputs)),
        cap_(std::make_shared<fe::graph::attn::score_modifiers::Softcap>()) {}

  Tensor forward(std::shared_ptr<Graph> graph, Tensor score) const {
    namespace parts = fe::graph::attn::score_modifiers;
    score = cap_->forward(graph, score, scalar());
    if (inputs_.lengths(0) != nullptr) {
      score = parts::padding_mask(graph, score, inputs_.lengths(1), inputs_.lengths(0));
    }
    const auto left = keys_to_left(a_.e), right = keys_to_right(a_.e);
    if (!left && !right) return score;
    return parts::sliding_window_mask(graph, score, alignment(a_), left, right, a_.e.queries,
                                      a_.e.keys, inputs_.lengths(0), inputs_.lengths(1));
  }
  Tensor backward(std::shared_ptr<Graph> graph, Tensor slope) const {
    return cap_->backward(graph, slope, scalar());
  }

 private:
  Tensor scalar() const { return std::make_shared<Tensor_attributes>(a_.e.softcap); }

  CudnnAttention a_;
  MaskInputs inputs_;
  std::shared_ptr<fe::graph::attn::score_modifiers::Softcap> cap_;
};

template <typename Attributes>
void set_diagonal(Attributes& attributes, const CudnnAttention& a) {
  const auto left = keys_to_left(a.e), right = keys_to_right(a.e);
  if (!left && !right) return;
  attributes.set_diagonal_alignment(alignment(a));
  if (left) attributes.set_diagonal_band_left_bound(static_cast<int>(*left));
  if (right) attributes.set_diagonal_band_right_bound(static_cast<int>(*right));
}

// `apart`: what hides keys is part of the graph (ScoreParts).
template <typename Attributes>
Attributes attention_attributes(const CudnnAttention& a, const MaskInputs& mask, bool apart) {
  Attributes made;
  made.set_name("attention").set_attn_scale(a.e.scale);
  if (!apart) set_diagonal(made, a);
  if (mask.bias() != nullptr) made.set_bias(mask.bias());
  if (mask.lengths(0) == nullptr) return made;
  made.set_padding_mask(!apart).set_seq_len_q(mask.lengths(0)).set_seq_len_kv(mask.lengths(1));
  return made;
}

// --- Convolutions ---

Extents plain_strides(const Extents& shape) {
  Extents strides(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  return strides;
}

// Strides of [images, channels, positions...] stored as [images, positions..., channels].
Extents channels_last_strides(const Extents& shape) {
  Extents strides(shape.size(), 1);
  int64_t step = shape[1];
  for (size_t i = shape.size() - 1; i > 1; --i) {
    strides[i] = step;
    step *= shape[i];
  }
  strides[0] = step;
  return strides;
}

Extents activation_strides(const ConvolutionParams& e, const Extents& shape) {
  return e.channels_last ? channels_last_strides(shape) : plain_strides(shape);
}

template <typename Attributes>
Attributes convolution_attributes(const ConvolutionParams& e) {
  Attributes a;
  a.set_name("convolution").set_pre_padding(e.pads_begin).set_post_padding(e.pads_end);
  a.set_stride(e.strides).set_dilation(e.dilations);
  return a;
}

}  // namespace

std::unique_ptr<CudnnPlan> plan_attention(const CudnnTarget& target, const CudnnAttention& a,
                                          bool statistics) {
  const AttentionParams& e = a.e;
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    const AttentionShapes s(e);
    const MaskInputs mask(b, a, statistics ? 6 : 5);
    const bool apart = e.softcap > 0;
    auto attributes = attention_attributes<fe::graph::SDPA_attributes>(a, mask, apart);
    attributes.set_generate_stats(statistics);
    if (apart) {
      const auto parts = std::make_shared<ScoreParts>(a, mask);
      attributes.set_score_mod(
          [parts](auto graph, auto score) { return parts->forward(graph, score); });
    }
    auto [y, kept] =
        b.graph().sdpa(b.input(1, s.q, strides_of(e.q)), b.input(2, s.k, strides_of(e.k)),
                       b.input(3, s.v, strides_of(e.v)), attributes);
    GraphBuilder::output(y, 4, s.y, strides_of(e.y));
    if (!statistics) return;
    GraphBuilder::output(kept, 5, s.statistics, s.statistics_strides)
        ->set_data_type(fe::DataType_t::FLOAT);
  });
}

std::unique_ptr<CudnnPlan> plan_attention_grad(const CudnnTarget& target, const CudnnAttention& a,
                                               const HeadStrides& y_strides) {
  const AttentionParams& e = a.e;
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    const AttentionShapes s(e);
    const bool apart = e.softcap > 0;
    const MaskInputs mask(b, a, 7);
    auto attributes = attention_attributes<fe::graph::SDPA_backward_attributes>(a, mask, apart);
    attributes.set_deterministic_algorithm(!target.may_vary);
    if (apart) {
      const auto parts = std::make_shared<ScoreParts>(a, mask);
      attributes.set_score_mod(
          [parts](auto graph, auto score) { return parts->forward(graph, score); });
      attributes.set_score_mod_bprop(
          [parts](auto graph, auto slope) { return parts->backward(graph, slope); });
    }
    const Tensor kept = b.input(6, s.statistics, s.statistics_strides);
    kept->set_data_type(fe::DataType_t::FLOAT);
    auto [dq, dk, dv] = b.graph().sdpa_backward(
        b.input(1, s.q, strides_of(e.q)), b.input(2, s.k, strides_of(e.k)),
        b.input(3, s.v, strides_of(e.v)), b.input(4, s.y, strides_of(y_strides)),
        b.input(5, s.y, strides_of(e.y)), kept, attributes);
    const int64_t next = 7 + mask.count();
    GraphBuilder::output(dq, next, s.q, strides_of(e.q));
    GraphBuilder::output(dk, next + 1, s.k, strides_of(e.k));
    GraphBuilder::output(dv, next + 2, s.v, strides_of(e.v));
  });
}

std::unique_ptr<CudnnPlan> plan_convolution(const CudnnTarget& target, const ConvolutionParams& e,
                                            bool bias) {
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    Tensor y = b.graph().conv_fprop(b.input(1, e.x, activation_strides(e, e.x)),
                                    b.input(2, e.w, plain_strides(e.w)),
                                    convolution_attributes<fe::graph::Conv_fprop_attributes>(e));
    if (bias) {
      y->set_dim(e.y).set_stride(activation_strides(e, e.y));
      Extents shape(e.y.size(), 1);
      shape[1] = e.y[1];
      Extents strides(e.y.size(), shape[1]);
      strides[1] = 1;
      y = b.graph().pointwise(y, b.input(4, shape, strides),
                              fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
    }
    GraphBuilder::output(y, 3, e.y, activation_strides(e, e.y));
  });
}

std::unique_ptr<CudnnPlan> plan_convolution_grad_input(const CudnnTarget& target,
                                                       const ConvolutionParams& e) {
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    const Tensor dx = b.graph().conv_dgrad(
        b.input(1, e.y, activation_strides(e, e.y)), b.input(2, e.w, plain_strides(e.w)),
        convolution_attributes<fe::graph::Conv_dgrad_attributes>(e));
    GraphBuilder::output(dx, 3, e.x, activation_strides(e, e.x));
  });
}

std::unique_ptr<CudnnPlan> plan_convolution_grad_weights(const CudnnTarget& target,
                                                         const ConvolutionParams& e) {
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    const Tensor dw = b.graph().conv_wgrad(
        b.input(1, e.y, activation_strides(e, e.y)), b.input(2, e.x, activation_strides(e, e.x)),
        convolution_attributes<fe::graph::Conv_wgrad_attributes>(e));
    GraphBuilder::output(dw, 3, e.w, plain_strides(e.w));
  });
}

}  // namespace ofsdp::kernels::cuda
