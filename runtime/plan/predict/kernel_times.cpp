#include "runtime/plan/predict/kernel_times.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <set>

#include "fsdp/comm/rank_sum.h"
#include "kernels/base/cgroup.h"

namespace ofsdp::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPerKernel{4};
constexpr int kMaxRuns = 20;
constexpr size_t kMaxOperands = size_t{512} << 20;  // bytes of a kernel that is measured

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// The fastest of several runs of `f`; negative when it fails.
double fastest(const std::function<bool()>& f) {
  if (!f()) return -1;
  const auto end = Clock::now() + kPerKernel;
  double best = 1e30;
  for (int i = 0; i < kMaxRuns && (i < 1 || Clock::now() < end); ++i) {
    const auto began = Clock::now();
    if (!f()) return -1;
    best = std::min(best, seconds_between(began, Clock::now()));
  }
  return best;
}

// One use of a kernel.
struct Subject {
  Kernel* kernel;
  const Graph* graph;
  const Node* node;
  int64_t batch;
  size_t bytes = 0;  // of all operands
  int uses = 1;
};

size_t desc_bytes(const Graph& graph, ValueId id) {
  return id == 0 ? 0 : align_up(graph.value(id).desc.bytes(), kTensorAlignment);
}

std::vector<Subject> subjects_of(const RunPlan& plan) {
  std::map<const Kernel*, Subject> found;
  for (const auto& [key, program] : plan.programs) {
    for (size_t n = 0; n < program.graph.nodes.size(); ++n) {
      Kernel* const kernel = program.kernels[n];
      if (kernel == nullptr) continue;
      const Node& node = program.graph.nodes[n];
      const auto [it, fresh] =
          found.try_emplace(kernel, Subject{kernel, &program.graph, &node, key.batch});
      if (!fresh) {
        ++it->second.uses;
        continue;
      }
      for (ValueId id : node.inputs) it->second.bytes += desc_bytes(program.graph, id);
      for (ValueId id : node.outputs) it->second.bytes += desc_bytes(program.graph, id);
    }
  }
  std::vector<Subject> list;
  for (const auto& [kernel, subject] : found) list.push_back(subject);
  std::ranges::stable_sort(list, std::greater(),
                           [](const Subject& s) { return s.bytes * static_cast<size_t>(s.uses); });
  // The largest kernel of each operator first: the pace of the others is estimated from it.
  std::set<const OpDef*> seen;
  std::ranges::stable_partition(list,
                                [&](const Subject& s) { return seen.insert(s.node->op).second; });
  return list;
}

size_t available_memory() {
  const auto free =
      static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return std::min(free, static_cast<size_t>(machine_memory().bytes));
}

// Memory for the operands of one kernel at a time: floats, integers, outputs and workspace.
class Scratch {
 public:
  static Result<Scratch> map(MemoryLedger& ledger, size_t bytes) {
    constexpr auto kPrivate = Region::Sharing::kPrivate;
    Scratch scratch;
    OFSDP_ASSIGN_OR_RETURN(scratch.floats_, Region::map(ledger, bytes, kPrivate, "kernel times"));
    OFSDP_ASSIGN_OR_RETURN(scratch.zeros_, Region::map(ledger, bytes, kPrivate, "kernel times"));
    OFSDP_ASSIGN_OR_RETURN(scratch.outputs_, Region::map(ledger, bytes, kPrivate, "kernel times"));
    auto* values = reinterpret_cast<float*>(scratch.floats_.data());
    std::fill_n(values, scratch.floats_.bytes() / sizeof(float), 0.5f);
    return scratch;
  }

  double time(const Subject& subject) {
    std::vector<TensorView> inputs, outputs;
    size_t floats = 0, zeros = 0, written = 0;
    for (ValueId id : subject.node->inputs) {
      const TensorDesc desc = id == 0 ? TensorDesc{} : subject.graph->value(id).desc;
      const ConstantPtr& constant = subject.graph->value(id).constant;
      if (id != 0 && constant != nullptr && !constant->bytes.empty()) {
        inputs.push_back({const_cast<std::byte*>(constant->bytes.data()), desc});
        continue;
      }
      const bool real = is_floating(desc.dtype);
      inputs.push_back(take(real ? floats_ : zeros_, real ? floats : zeros, desc));
    }
    for (ValueId id : subject.node->outputs) {
      outputs.push_back(
          take(outputs_, written, id == 0 ? TensorDesc{} : subject.graph->value(id).desc));
    }
    std::vector<int64_t> samples(static_cast<size_t>(subject.batch));
    const StepContext context{0, 0, samples};
    std::byte* const workspace = outputs_.data() + written;
    return fastest([&] {
      return subject.kernel->run({inputs, outputs, workspace, &context}).ok();
    });
  }

 private:
  static TensorView take(Region& region, size_t& end, const TensorDesc& desc) {
    if (!desc.present()) return {};
    std::byte* const data = region.data() + end;
    end += align_up(desc.bytes(), kTensorAlignment);
    return {data, desc};
  }

  Region floats_, zeros_, outputs_;
};

// Seconds a byte of each operator, from what was measured; "" is all of them together.
std::map<std::string, double> pace(const std::vector<Subject>& list, const KernelTimes& times) {
  std::map<std::string, std::pair<double, double>> sums;
  for (const Subject& s : list) {
    const auto it = times.seconds.find(s.kernel);
    if (it == times.seconds.end()) continue;
    for (const std::string& name : {s.node->op->full_name(), std::string()}) {
      sums[name].first += it->second;
      sums[name].second += static_cast<double>(s.bytes);
    }
  }
  std::map<std::string, double> paces;
  for (const auto& [name, sum] : sums) paces[name] = sum.second > 0 ? sum.first / sum.second : 0;
  return paces;
}

size_t orthogonal_bytes(const OrthogonalMatrix& m) {
  return align_up(static_cast<size_t>(m.numel()) * sizeof(float), kTensorAlignment) + m.work_bytes;
}

// Operations a second of an iteration on the costliest matrix that fits; 0 without any.
Result<double> measure_products(const RunPlan& plan) {
  const size_t most = std::min(available_memory() / 8, kMaxOperands);
  const OrthogonalMatrix* costliest = nullptr;
  for (const OrthogonalUnit& unit : plan.orthogonal) {
    for (const OrthogonalMatrix& m : unit) {
      if (orthogonal_bytes(m) > most) continue;
      if (costliest == nullptr || iteration_flops(m) > iteration_flops(*costliest)) costliest = &m;
    }
  }
  if (costliest == nullptr) return 0.0;
  OrthogonalMatrix m = *costliest;  // its operands get addresses
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(const Region memory, Region::map(ledger, orthogonal_bytes(m),
                                                          Region::Sharing::kPrivate, "products"));
  auto* const values = reinterpret_cast<float*>(memory.data());
  std::fill_n(values, m.numel(), 0.01f);
  std::byte* const work = memory.data() + (orthogonal_bytes(m) - m.work_bytes);
  HostArithmetic host;
  const double seconds = fastest([&] { return iterate(m, values, work, host).ok(); });
  return seconds > 0 ? iteration_flops(m) / seconds : 0.0;
}

}  // namespace

Result<KernelTimes> measure_kernels(const RunPlan& plan, std::chrono::milliseconds budget) {
  const auto list = subjects_of(plan);
  const size_t most = std::min(available_memory() / 8, kMaxOperands);
  size_t needed = kTensorAlignment;
  auto fits = [&](const Subject& s) {
    const size_t samples = static_cast<size_t>(s.batch) * sizeof(int64_t);
    return s.bytes + s.kernel->workspace_bytes() + samples <= most;
  };
  for (const Subject& s : list) {
    if (fits(s)) needed = std::max(needed, s.bytes + s.kernel->workspace_bytes());
  }
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(Scratch scratch, Scratch::map(ledger, needed));
  KernelTimes times;
  const auto end = Clock::now() + budget;
  for (const Subject& s : list) {
    if (!fits(s) || Clock::now() > end) continue;
    const double seconds = scratch.time(s);
    if (seconds >= 0) times.seconds[s.kernel] = seconds;
  }
  times.measured = static_cast<int>(times.seconds.size());
  times.estimated = static_cast<int>(list.size()) - times.measured;
  const auto paces = pace(list, times);
  for (const Subject& s : list) {
    if (times.seconds.contains(s.kernel)) continue;
    const auto same = paces.find(s.node->op->full_name());
    const auto any = paces.find("");
    const double rate = same != paces.end() ? same->second : any != paces.end() ? any->second : 0;
    times.seconds[s.kernel] = rate * static_cast<double>(s.bytes);
  }
  return times;
}

Result<MachineRates> measure_rates(const RunPlan& plan) {
  constexpr int64_t kNumel = 4 << 20;  // 16 MiB: beyond the caches of a core
  constexpr size_t kBytes = kNumel * sizeof(float);
  const size_t states = plan.optimizer->state_names(plan.settings).size();
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(
      const Region memory,
      Region::map(ledger, (2 + states) * kBytes, Region::Sharing::kPrivate, "memory rates"));
  std::byte* const base = memory.data();
  MachineRates rates;
  rates.copy = 2.0 * kBytes / fastest([&] {
                 convert_elements(base, DType::kFloat32, base + kBytes, DType::kFloat32, kNumel);
                 return true;
               });
  std::vector<float*> state;
  std::vector<StoredState> stored;
  for (size_t i = 0; i < states; ++i) {
    std::byte* const at = base + (2 + i) * kBytes;
    state.push_back(reinterpret_cast<float*>(at));
    stored.push_back(stored_state(plan.updates.form_of(i), at, kNumel));
  }
  auto* const values = reinterpret_cast<float*>(base);
  rates.update =
      static_cast<double>(kNumel) / fastest([&] {
        const OptimizerSpan<float> all{values, values + kNumel, state.data(), kNumel, 0, 0, 1};
        if (plan.updates.encodes()) {
          update_stored(*plan.optimizer, plan.settings, all, stored, {.random = true});
        } else {
          plan.optimizer->update(plan.settings, all);
        }
        return true;
      });
  OFSDP_ASSIGN_OR_RETURN(rates.products, measure_products(plan));
  return rates;
}

}  // namespace ofsdp::runtime
