// The only file that includes cudnn-frontend, which takes half a minute to compile.
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include <exception>
#include <numeric>

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

template <typename Attributes>
Attributes attention_attributes(const AttentionParams& e) {
  Attributes a;
  a.set_name("attention").set_attn_scale(e.scale);
  if (e.causal && e.offset == 0) a.set_causal_mask(true);
  if (e.causal && e.offset != 0) a.set_causal_mask_bottom_right(true);
  return a;
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

std::unique_ptr<CudnnPlan> plan_attention(const CudnnTarget& target, const AttentionParams& e,
                                          bool statistics) {
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    const AttentionShapes s(e);
    auto attributes = attention_attributes<fe::graph::SDPA_attributes>(e);
    attributes.set_generate_stats(statistics);
    auto [y, kept] =
        b.graph().sdpa(b.input(1, s.q, strides_of(e.q)), b.input(2, s.k, strides_of(e.k)),
                       b.input(3, s.v, strides_of(e.v)), attributes);
    GraphBuilder::output(y, 4, s.y, strides_of(e.y));
    if (!statistics) return;
    GraphBuilder::output(kept, 5, s.statistics, s.statistics_strides)
        ->set_data_type(fe::DataType_t::FLOAT);
  });
}

std::unique_ptr<CudnnPlan> plan_attention_grad(const CudnnTarget& target, const AttentionParams& e,
                                               const HeadStrides& y_strides) {
  return plan(target, e.dtype, [&](GraphBuilder& b) {
    const AttentionShapes s(e);
    auto attributes = attention_attributes<fe::graph::SDPA_backward_attributes>(e);
    attributes.set_deterministic_algorithm(!target.may_vary);
    const Tensor kept = b.input(6, s.statistics, s.statistics_strides);
    kept->set_data_type(fe::DataType_t::FLOAT);
    auto [dq, dk, dv] = b.graph().sdpa_backward(
        b.input(1, s.q, strides_of(e.q)), b.input(2, s.k, strides_of(e.k)),
        b.input(3, s.v, strides_of(e.v)), b.input(4, s.y, strides_of(y_strides)),
        b.input(5, s.y, strides_of(e.y)), kept, attributes);
    GraphBuilder::output(dq, 7, s.q, strides_of(e.q));
    GraphBuilder::output(dk, 8, s.k, strides_of(e.k));
    GraphBuilder::output(dv, 9, s.v, strides_of(e.v));
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
