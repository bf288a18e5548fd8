// What is computed: operators by the CPU's kernels, the rest in the order of operations of
// runtime/engine/cpu_engine.cpp, so that the bits must be the CPU path's.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/rank_sum.h"
#include "kernels/core/device.h"
#include "kernels/core/device_problem.h"
#include "kernels/cpu/parallel.h"
#include "runtime/engine/loss_scale.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {
namespace {

const std::byte* bytes_at(const void* data) { return static_cast<const std::byte*>(data); }

size_t width(int32_t dtype) { return dtype_size(static_cast<DType>(dtype)); }

size_t floats(int64_t count) { return static_cast<size_t>(count) * sizeof(float); }

ofsdp_kernel* make_kernel(ofsdp_device* device, const ofsdp_problem* c, size_t* workspace) {
  const std::string op = c->op;
  const char* without = std::getenv("COUNTING_DEVICE_WITHOUT");
  if (without != nullptr && op == without) return nullptr;
  Problem problem = decode(*c);
  problem.threads = pool_threads();
  auto kernel = make_operator(*device, op, problem);
  if (kernel == nullptr) return nullptr;
  if (device->counts["operations"] > 0) device->counts["kernels_made_late"]++;
  ++device->counts["kernel:" + op];
  *workspace = kernel->workspace_bytes();
  return new ofsdp_kernel{std::move(kernel), std::move(problem), op};
}

void drop_kernel(ofsdp_device*, ofsdp_kernel* kernel) { delete kernel; }

bool views_of(ofsdp_device* device, const std::vector<TensorDesc>& descs, void* const* data,
              const std::string& op, std::vector<TensorView>& views) {
  for (size_t i = 0; i < descs.size(); ++i) {
    views.push_back({static_cast<std::byte*>(data[i]), descs[i]});
    const bool there = descs[i].present() && descs[i].bytes() > 0;
    if (there && !device->holds(data[i], descs[i].bytes(), false, op.c_str())) return false;
  }
  return true;
}

// What the CPU's kernel says in words about its data is noted as a kernel of a GPU would.
Status note_fault(const ofsdp_launch& launch, const Status& status) {
  if (launch.fault == nullptr) return fault("{}", status.message());
  if (launch.fault->node != 0) return {};
  launch.fault->node = launch.node;
  const std::string text = status.message();
  std::sscanf(text.c_str(), "index %" SCNd64 " at element %*d is outside -%" SCNd64,
              &launch.fault->value, &launch.fault->extent);
  return {};
}

// The values of a StepContext are in device memory, so they are read when the operator runs.
int32_t run(ofsdp_device* device, ofsdp_kernel* kernel, ofsdp_stream* stream,
            const ofsdp_launch* launch) {
  std::vector<TensorView> inputs, outputs;
  const Problem& problem = kernel->problem;
  if (!views_of(device, problem.inputs, launch->inputs, kernel->op, inputs) ||
      !views_of(device, problem.outputs, launch->outputs, kernel->op, outputs)) {
    return 1;
  }
  const size_t needed = kernel->kernel->workspace_bytes();
  const size_t numbers =
      sizeof(ofsdp_step_numbers) + static_cast<size_t>(launch->samples) * sizeof(int64_t);
  if (!device->holds(launch->workspace, needed, false, "workspace") ||
      !device->holds(launch->numbers, numbers, false, "step numbers") ||
      !device->holds(launch->fault, launch->fault == nullptr ? 0 : sizeof(ofsdp_data_fault), false,
                     "the fault")) {
    return 1;
  }
  return device->put(stream, [=, launch = *launch]() -> Status {
    const auto* index = reinterpret_cast<const int64_t*>(launch.numbers + 1);
    if (launch.numbers->samples != launch.samples) {
      return fault("{}: launched for {} samples, runs with {}", kernel->op, launch.samples,
                   launch.numbers->samples);
    }
    DeviceStepContext step;
    static_cast<StepContext&>(step) = {
        launch.numbers->seed, launch.numbers->step, {index, static_cast<size_t>(launch.samples)}};
    step.fault = launch.fault;
    step.node = launch.node;
    Status status =
        kernel->kernel->run({inputs, outputs, static_cast<std::byte*>(launch.workspace), &step});
    return !status.ok() && status.kind() == ErrorKind::kInput ? note_fault(launch, status)
                                                              : std::move(status);
  });
}

int32_t begin(ofsdp_device* device, ofsdp_stream* stream, ofsdp_run_state* s,
              const ofsdp_step_numbers* n, int32_t update, int32_t scales) {
  if (!device->holds(s, sizeof(*s), false, "begin") ||
      !device->holds(n, sizeof(*n), false, "begin"))
    return 1;
  return device->put(stream, [=] {
    if (update != 0) {
      s->scale_used = scales != 0 ? s->loss_scale : 1.0;
      s->squared_norm = s->global_norm = 0;
      s->skip = 0;
      s->gradient_factor = 1.0f;
      s->optimizer_step = s->steps_before + n->step + 1 - s->skipped_updates;
    }
    s->loss_weight = n->loss_share * static_cast<float>(s->scale_used);
    return Status{};
  });
}

int32_t note_loss(ofsdp_device* device, ofsdp_stream* stream, ofsdp_run_state* s, const float* loss,
                  int32_t stops) {
  if (!device->holds(loss, sizeof(float), false, "the loss")) return 1;
  return device->put(stream, [=] {
    s->loss = *loss;
    if (stops != 0 && (std::isnan(*loss) || s->fault.node != 0)) s->stop = 1;
    return Status{};
  });
}

int32_t convert(ofsdp_device* device, ofsdp_stream* stream, const void* src, int32_t from,
                void* dst, int32_t to, int64_t n) {
  const auto count = static_cast<size_t>(n);
  if (!device->holds(src, count * width(from), false, "convert from") ||
      !device->holds(dst, count * width(to), false, "convert to")) {
    return 1;
  }
  return device->put(stream, [=] {
    convert_elements(bytes_at(src), static_cast<DType>(from), static_cast<std::byte*>(dst),
                     static_cast<DType>(to), n);
    return Status{};
  });
}

int32_t add(ofsdp_device* device, ofsdp_stream* stream, const void* src, int32_t from, float* dst,
            int64_t n) {
  if (!device->holds(src, static_cast<size_t>(n) * width(from), false, "add from") ||
      !device->holds(dst, floats(n), false, "add to")) {
    return 1;
  }
  return device->put(stream, [=] {
    add_elements(bytes_at(src), static_cast<DType>(from), dst, n);
    return Status{};
  });
}

int32_t round_values(ofsdp_device* device, ofsdp_stream* stream, float* values, int32_t to,
                     int64_t n) {
  if (!device->holds(values, floats(n), false, "round")) return 1;
  return device->put(stream, [=] {
    round_elements(values, static_cast<DType>(to), n);
    return Status{};
  });
}

// Elements [begin, begin + count) as the update takes them.
void take(const ofsdp_gradient& g, int64_t begin, int64_t count, float* to) {
  const std::byte* src = bytes_at(g.src) + static_cast<size_t>(begin) * width(g.dtype);
  convert_elements(src, static_cast<DType>(g.dtype), reinterpret_cast<std::byte*>(to),
                   DType::kFloat32, count);
  round_elements(to, static_cast<DType>(g.reduce_dtype), count);
  if (g.onto == nullptr) return;
  add_elements(bytes_at(g.onto + begin), DType::kFloat32, to, count);
}

bool holds_gradient(ofsdp_device* device, const ofsdp_gradient& g, int64_t count) {
  return device->holds(g.src, static_cast<size_t>(count) * width(g.dtype), false, "a gradient") &&
         device->holds(g.onto, g.onto == nullptr ? 0 : floats(count), false, "a gradient's sum");
}

int32_t reduce(ofsdp_device* device, ofsdp_stream* stream, const ofsdp_reduce* given) {
  const ofsdp_reduce r = *given;
  const auto partials = static_cast<size_t>(r.count / kReduceBlock + 2) * sizeof(double);
  if (!holds_gradient(device, r.gradient, r.count) ||
      !device->holds(r.dst, r.dst == nullptr ? 0 : floats(r.count), false, "a reduced gradient") ||
      !device->holds(r.partials, r.norm_count == 0 ? 0 : partials, false, "partial sums")) {
    return 1;
  }
  return device->put(stream, [r] {
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

int32_t clip(ofsdp_device* device, ofsdp_stream* stream, ofsdp_run_state* s, double most,
             int32_t scales) {
  return device->put(stream, [=] {
    s->global_norm = std::sqrt(s->squared_norm) / s->scale_used;
    float factor = 1.0f;
    if (most > 0) {
      factor =
          std::min(static_cast<float>(most) / (static_cast<float>(s->global_norm) + 1e-6f), 1.0f);
    }
    s->gradient_factor = factor / static_cast<float>(s->scale_used);
    if (scales == 0) return Status{};
    s->skip = std::isfinite(s->global_norm) ? 0 : 1;
    LossScale scale{s->loss_scale, s->good_updates, s->skipped_updates};
    scale.note(s->skip == 0);
    s->loss_scale = scale.scale;
    s->good_updates = scale.good_updates;
    s->skipped_updates = scale.skipped_updates;
    return Status{};
  });
}

ofsdp_device_optimizer* make_optimizer(ofsdp_device* device, const char* name,
                                       const ofsdp_optimizer_settings* s) {
  for (const OptimizerDef& def : device->optimizers) {
    if (def.name != name) continue;
    OptimizerSettings settings;
    settings.momentum = s->momentum;
    settings.nesterov = s->nesterov != 0;
    settings.beta1 = s->beta1;
    settings.beta2 = s->beta2;
    settings.eps = s->eps;
    settings.rho = s->rho;
    settings.bias_correction = s->no_bias_correction == 0;
    return new ofsdp_device_optimizer{&def, settings};
  }
  return nullptr;
}

void drop_optimizer(ofsdp_device*, ofsdp_device_optimizer* optimizer) { delete optimizer; }

Status apply(const ofsdp_device_optimizer& optimizer, const ofsdp_device_update& u) {
  if (u.state->skip != 0 || u.state->stop != 0) return {};
  std::array<float, kReduceBlock> block;
  for (int64_t begin = 0; begin < u.count; begin += kReduceBlock) {
    const int64_t count = std::min(kReduceBlock, u.count - begin);
    take(u.gradient, begin, count, block.data());
    for (int64_t i = 0; u.scaled != 0 && i < count; ++i) {
      block[static_cast<size_t>(i)] *= u.state->gradient_factor;
    }
    std::array<float*, OFSDP_MOST_OPTIMIZER_STATES> states{};
    for (size_t i = 0; i < states.size(); ++i) {
      if (u.states[i] != nullptr) states[i] = u.states[i] + begin;
    }
    optimizer.definition->update(
        optimizer.settings, {u.param + begin, block.data(), states.data(), count, u.numbers->lr,
                             u.weight_decay, u.state->optimizer_step});
  }
  return {};
}

int32_t update(ofsdp_device* device, ofsdp_stream* stream, ofsdp_device_optimizer* optimizer,
               const ofsdp_device_update* given) {
  const ofsdp_device_update u = *given;
  if (!holds_gradient(device, u.gradient, u.count) ||
      !device->holds(u.param, floats(u.count), false, "a parameter")) {
    return 1;
  }
  for (const float* state : u.states) {
    const size_t bytes = state == nullptr ? 0 : floats(u.count);
    if (!device->holds(state, bytes, false, "optimizer state")) return 1;
  }
  return device->put(stream, [=] { return apply(*optimizer, u); });
}

}  // namespace

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

std::vector<OptimizerDef> optimizers() {
  std::vector<OptimizerDef> list = optimizer_list();
  OptimizerDef& assign = list.emplace_back();
  assign.name = "assign";
  assign.update = [](const OptimizerSettings&, const OptimizerSpan<float>& span) {
    std::copy_n(span.grad, span.count, span.param);
  };
  return list;
}

void add_work(ofsdp_device_table& table) {
  table.make_kernel = Locked<make_kernel>::call;
  table.drop_kernel = Locked<drop_kernel>::call;
  table.run = Locked<run>::call;
  table.begin = Locked<begin>::call;
  table.note_loss = Locked<note_loss>::call;
  table.convert = Locked<convert>::call;
  table.add = Locked<add>::call;
  table.round = Locked<round_values>::call;
  table.reduce = Locked<reduce>::call;
  table.clip = Locked<clip>::call;
  table.make_optimizer = Locked<make_optimizer>::call;
  table.drop_optimizer = Locked<drop_optimizer>::call;
  table.update = Locked<update>::call;
  add_norms(table);
}

}  // namespace ofsdp::counting
