// Computes: operators by the CPU's kernels, the rest in the order of operations in
// runtime/engine/cpu_engine.cpp. So the bits must equal the CPU path's.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fsdp/comm/communicator.h"
#include "kernels/core/device.h"
#include "kernels/cpu/parallel.h"
#include "runtime/engine/loss_scale.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {
namespace {

const std::byte* bytes_at(const void* data) { return static_cast<const std::byte*>(data); }

size_t width(int32_t dtype) { return dtype_size(static_cast<DType>(dtype)); }

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

// A kernel on a stream that checks the addresses of all operands.
class CountedKernel final : public Kernel {
 public:
  CountedKernel(CountingDevice& device, std::string op, Problem problem,
                std::unique_ptr<Kernel> kernel)
      : device_(device),
        op_(std::move(op)),
        problem_(std::move(problem)),
        kernel_(std::move(kernel)) {}
  size_t workspace_bytes() const override { return kernel_->workspace_bytes(); }

  // A StepContext's values are in device memory, so they are read when the operator runs.
  Status run(const KernelArgs& args) override {
    const std::lock_guard lock(device_.mutex);
    const auto& given = static_cast<const DeviceStepContext&>(*args.step);
    if (!holds(args, given)) return std::move(device_.refused()).with_prefix("a kernel");
    ofsdp_stream* const stream = given.stream != nullptr ? given.stream : device_.compute();
    return device_.put(stream,
                       [this, given, inputs = std::vector(args.inputs.begin(), args.inputs.end()),
                        outputs = std::vector(args.outputs.begin(), args.outputs.end()),
                        workspace = args.workspace]() -> Status {
                         const ofsdp_step_numbers& numbers = *given.numbers;
                         if (numbers.samples != given.samples) {
                           return fault("{}: launched for {} samples, runs with {}", op_,
                                        given.samples, numbers.samples);
                         }
                         DeviceStepContext step = given;
                         step.seed = numbers.seed;
                         step.step = numbers.step;
                         step.sample_index = {reinterpret_cast<const int64_t*>(given.numbers + 1),
                                              static_cast<size_t>(given.samples)};
                         Status status = kernel_->run({inputs, outputs, workspace, &step});
                         return !status.ok() && status.kind() == ErrorKind::kInput
                                    ? note_fault(given, status)
                                    : std::move(status);
                       });
  }

 private:
  bool holds(const KernelArgs& args, const DeviceStepContext& step) const {
    const auto all = [&](std::span<const TensorView> views, const std::vector<TensorDesc>& descs) {
      for (size_t i = 0; i < descs.size(); ++i) {
        const bool there = descs[i].present() && descs[i].bytes() > 0;
        if (there && !device_.holds(views[i].data, descs[i].bytes(), false, op_.c_str())) {
          return false;
        }
      }
      return true;
    };
    const size_t numbers =
        sizeof(ofsdp_step_numbers) + static_cast<size_t>(step.samples) * sizeof(int64_t);
    const size_t record = step.fault == nullptr ? 0 : sizeof(ofsdp_data_fault);
    return all(args.inputs, problem_.inputs) && all(args.outputs, problem_.outputs) &&
           device_.holds(args.workspace, kernel_->workspace_bytes(), false, "workspace") &&
           device_.holds(step.numbers, numbers, false, "step numbers") &&
           device_.holds(step.fault, record, false, "the fault");
  }

  // Notes a data fault that the CPU's kernel returns, as a kernel on a GPU would note it.
  static Status note_fault(const DeviceStepContext& launch, const Status& status) {
    if (launch.fault == nullptr) return fault("{}", status.message());
    if (launch.fault->node != 0) return {};
    launch.fault->node = launch.node;
    const std::string text = status.message();
    std::sscanf(text.c_str(), "index %" SCNd64 " at element %*d is outside -%" SCNd64,
                &launch.fault->value, &launch.fault->extent);
    return {};
  }

  CountingDevice& device_;
  std::string op_;
  Problem problem_;
  std::unique_ptr<Kernel> kernel_;
};

// Elements [begin, begin + count) in the form for the update.
void take(const ofsdp_gradient& g, int64_t begin, int64_t count, float* to) {
  const std::byte* src = bytes_at(g.src) + static_cast<size_t>(begin) * width(g.dtype);
  convert_elements(src, static_cast<DType>(g.dtype), reinterpret_cast<std::byte*>(to),
                   DType::kFloat32, count);
  round_elements(to, static_cast<DType>(g.reduce_dtype), count);
  if (g.onto == nullptr) return;
  add_elements(bytes_at(g.onto + begin), DType::kFloat32, to, count);
}

bool holds_gradient(CountingDevice* device, const ofsdp_gradient& g, int64_t count) {
  return device->holds(g.src, static_cast<size_t>(count) * width(g.dtype), false, "a gradient") &&
         device->holds(g.onto, g.onto == nullptr ? 0 : floats(count), false, "a gradient's sum");
}

}  // namespace

std::unique_ptr<Kernel> CountingDevice::make_kernel(const std::string& op, const Problem& given,
                                                    KernelChoice* choice) {
  const std::lock_guard lock(mutex);
  const char* without = std::getenv("COUNTING_DEVICE_WITHOUT");
  if (without != nullptr && op == without) return nullptr;
  Problem problem = given;
  problem.threads = pool_threads();
  auto kernel = make_operator(*this, op, problem, choice);
  if (kernel == nullptr) return nullptr;
  if (counts["operations"] > 0) counts["kernels_made_late"]++;
  ++counts["kernel:" + op];
  return std::make_unique<CountedKernel>(*this, op, std::move(problem), std::move(kernel));
}

Status CountingDevice::begin(ofsdp_stream* stream, ofsdp_run_state* s, ofsdp_step_numbers* n,
                             bool update, bool scales) {
  const std::lock_guard lock(mutex);
  if (!holds(s, sizeof(*s), false, "begin") || !holds(n, sizeof(*n), false, "begin"))
    return refused();
  return put(stream, [=] {
    if (s->skipped_updates > n->skipped_updates) {
      n->lr = n->lr_if_skipped;
      n->factor = n->factor_if_skipped;
    }
    if (update) {
      s->scale_used = scales ? s->loss_scale : 1.0;
      s->squared_norm = s->global_norm = 0;
      s->skip = 0;
      s->gradient_factor = 1.0f;
      s->optimizer_step = s->steps_before + n->step + 1 - s->skipped_updates;
    }
    for (size_t i = 0; i < std::size(n->loss_shares); ++i) {
      s->loss_weights[i] = n->loss_shares[i] * static_cast<float>(s->scale_used);
    }
    return Status{};
  });
}

Status CountingDevice::note_loss(ofsdp_stream* stream, ofsdp_run_state* s, int index,
                                 const float* loss, bool stops) {
  const std::lock_guard lock(mutex);
  if (!holds(loss, sizeof(float), false, "the loss")) return refused();
  return put(stream, [=] {
    s->losses[index] = *loss;
    if (stops && (std::isnan(*loss) || s->fault.node != 0)) s->stop = 1;
    return Status{};
  });
}

Status CountingDevice::convert(ofsdp_stream* stream, const void* src, int32_t from, void* dst,
                               int32_t to, int64_t n) {
  const std::lock_guard lock(mutex);
  const auto count = static_cast<size_t>(n);
  if (!holds(src, count * width(from), false, "convert from") ||
      !holds(dst, count * width(to), false, "convert to")) {
    return refused();
  }
  return put(stream, [=] {
    convert_elements(bytes_at(src), static_cast<DType>(from), static_cast<std::byte*>(dst),
                     static_cast<DType>(to), n);
    return Status{};
  });
}

Status CountingDevice::add(ofsdp_stream* stream, const void* src, int32_t from, float* dst,
                           int64_t n) {
  const std::lock_guard lock(mutex);
  if (!holds(src, static_cast<size_t>(n) * width(from), false, "add from") ||
      !holds(dst, floats(n), false, "add to")) {
    return refused();
  }
  return put(stream, [=] {
    add_elements(bytes_at(src), static_cast<DType>(from), dst, n);
    return Status{};
  });
}

Status CountingDevice::round(ofsdp_stream* stream, float* values, int32_t to, int64_t n) {
  const std::lock_guard lock(mutex);
  if (!holds(values, floats(n), false, "round")) return refused();
  return put(stream, [=] {
    round_elements(values, static_cast<DType>(to), n);
    return Status{};
  });
}

Status CountingDevice::reduce(ofsdp_stream* stream, const ofsdp_reduce* given) {
  const std::lock_guard lock(mutex);
  const ofsdp_reduce r = *given;
  const auto partials = static_cast<size_t>(r.count / kReduceBlock + 2) * sizeof(double);
  if (!holds_gradient(this, r.gradient, r.count) ||
      !holds(r.dst, r.dst == nullptr ? 0 : floats(r.count), false, "a reduced gradient") ||
      !holds(r.partials, r.norm_count == 0 ? 0 : partials, false, "partial sums")) {
    return refused();
  }
  return put(stream, [r] {
    std::array<float, kReduceBlock> block;
    for (int64_t begin = 0; begin < r.count; begin += kReduceBlock) {
      const int64_t count = std::min(kReduceBlock, r.count - begin);
      take(r.gradient, begin, count, block.data());
      const int64_t from = std::clamp<int64_t>(r.norm_first - begin, 0, count);
      const int64_t to = std::clamp<int64_t>(r.norm_first + r.norm_count - begin, from, count);
      r.state->squared_norm += squares(block.data() + from, to - from);
      if (r.dst != nullptr) std::memcpy(r.dst + begin, block.data(), floats(count));
    }
    return Status{};
  });
}

Status CountingDevice::clip(ofsdp_stream* stream, ofsdp_run_state* s, double most, bool scales) {
  const std::lock_guard lock(mutex);
  return put(stream, [=] {
    s->global_norm = std::sqrt(s->squared_norm) / s->scale_used;
    float factor = 1.0f;
    if (most > 0) {
      factor =
          std::min(static_cast<float>(most) / (static_cast<float>(s->global_norm) + 1e-6f), 1.0f);
    }
    s->gradient_factor = factor / static_cast<float>(s->scale_used);
    if (!scales) return Status{};
    s->skip = std::isfinite(s->global_norm) ? 0 : 1;
    LossScale scale{s->loss_scale, s->good_updates, s->skipped_updates};
    scale.note(s->skip == 0);
    s->loss_scale = scale.scale;
    s->good_updates = scale.good_updates;
    s->skipped_updates = scale.skipped_updates;
    return Status{};
  });
}

double squares(const float* values, int64_t count) {
  std::array<double, 16> lanes{};
  for (int64_t i = 0; i < count; ++i) {
    const double value = values[i];
    lanes[static_cast<size_t>(i % 16)] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

std::unique_ptr<Kernel> make_cpu_update(CountingDevice& device, const std::string& op,
                                        const Problem& problem) {
  const size_t dot = op.rfind('.');
  const OpDef* const def = device.updates.find(op.substr(0, dot), op.substr(dot + 1));
  if (def == nullptr) return nullptr;
  auto kernel = create_kernel(*def, problem);
  return kernel.ok() ? *std::move(kernel) : nullptr;
}

}  // namespace ofsdp::counting
