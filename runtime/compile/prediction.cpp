// Predicting an update's time (prediction.h): measure_kernels and measure_rates run kernels and
// copies on scratch memory; StepPricer gives each step of a schedule a cost from these
// measurements, with one method per value of the column `cost` in program/steps.inc; simulate()
// adds up the costs.
#include "runtime/compile/prediction.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <set>

#include "fsdp/comm/communicator.h"
#include "kernels/base/process.h"
#include "runtime/compile/program/steps.inc"

namespace ofsdp::runtime {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPerKernel{4};
constexpr int kMaxRuns = 20;
constexpr size_t kMaxOperands = size_t{512} << 20;  // bytes of a measured kernel's operands

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// Returns the fastest run's seconds, or -1 if `f` fails.
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

// A kernel and the first node that uses it.
struct Subject {
  Kernel* kernel;
  const Graph* graph;
  const Node* node;
  int64_t batch;
  size_t bytes = 0;  // all operands
  int uses = 1;
};

size_t desc_bytes(const Graph& graph, ValueId id) {
  return id == 0 ? 0 : align_up(graph.value(id).desc.bytes(), kTensorAlignment);
}

using Subjects = std::map<const Kernel*, Subject>;

void add_subjects(const StepProgram& program, int64_t batch, Subjects& found) {
  for (size_t n = 0; n < program.graph.nodes.size(); ++n) {
    Kernel* const kernel = program.kernels[n];
    if (kernel == nullptr) continue;
    const Node& node = program.graph.nodes[n];
    const auto [it, fresh] =
        found.try_emplace(kernel, Subject{kernel, &program.graph, &node, batch});
    if (!fresh) {
      ++it->second.uses;
      continue;
    }
    for (ValueId id : node.inputs) it->second.bytes += desc_bytes(program.graph, id);
    for (ValueId id : node.outputs) it->second.bytes += desc_bytes(program.graph, id);
  }
}

std::vector<Subject> subjects_of(const std::vector<const CompiledRun*>& plans) {
  Subjects found;
  for (const CompiledRun* plan : plans) {
    for (const auto& [key, program] : plan->programs) add_subjects(program, key.batch, found);
  }
  std::vector<Subject> list;
  for (const auto& [kernel, subject] : found) list.push_back(subject);
  std::ranges::stable_sort(list, std::greater(),
                           [](const Subject& s) { return s.bytes * static_cast<size_t>(s.uses); });
  // Measures each operator's largest kernel first: estimates of the others follow from it.
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

// Memory for the operands of one kernel at a time.
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

// Returns measured seconds per byte for each operator; "": for all.
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

// Returns floating-point operations per second of a Newton-Schulz iteration on the costliest matrix
// that fits into memory; 0 if there is none.
Result<double> measure_products(const CompiledRun& plan) {
  const size_t most = std::min(available_memory() / 8, kMaxOperands);
  const OrthogonalMatrix* costliest = nullptr;
  for (const OrthogonalUnit& unit : plan.orthogonal) {
    for (const OrthogonalMatrix& m : unit) {
      if (orthogonal_bytes(m) > most) continue;
      if (costliest == nullptr || iteration_flops(m) > iteration_flops(*costliest)) costliest = &m;
    }
  }
  if (costliest == nullptr) return 0.0;
  OrthogonalMatrix m = *costliest;  // a copy, since `iterate` sets addresses in it
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(const Region memory, Region::map(ledger, orthogonal_bytes(m),
                                                          Region::Sharing::kPrivate, "products"));
  auto* const values = reinterpret_cast<float*>(memory.data());
  std::fill_n(values, m.numel(), 0.01f);
  std::byte* const work = memory.data() + (orthogonal_bytes(m) - m.work_bytes);
  const double seconds = fastest([&] { return iterate(m, values, work).ok(); });
  return seconds > 0 ? iteration_flops(m) / seconds : 0.0;
}

constexpr double kLocalSignal = 5e-6;  // seconds to wake a sleeping rank

class StepPricer {
 public:
  StepPricer(const CompiledRun& run, const StepProgram& program, const Machine& machine)
      : run_(run), plan_(run.shards), program_(program), machine_(machine) {}

  StepCost price(const Operation& op) const {
    switch (op.kind) {
#define OPERATION(kind, engine, cost, traffic, description) \
  case OpKind::k##kind:                                     \
    return cost(op);
#define HOST_OPERATION(kind, description) \
  case OpKind::k##kind:                   \
    break;
#include "runtime/compile/program/steps.inc"
    }
    return {};
  }

 private:
  // --- The column `cost` of steps.inc

  StepCost none(const Operation&) const { return {}; }

  StepCost node(const Operation& op) const {
    return computation(machine_.kernels.of(program_.kernels[static_cast<size_t>(op.node)]));
  }

  StepCost copy(const Operation& op) const {
    return computation(copying(3.0 * sizeof(float) * static_cast<double>(op.dst.count)));
  }

  StepCost place_rows(const Operation& op) const {
    return computation(copying(2.0 * static_cast<double>(op.dst.bytes())));
  }

  StepCost update(const Operation& op) const { return computation(updating(op.part.numel)); }

  // The trained part's gather includes the frozen part.
  StepCost unshard(const Operation& op) const {
    if (op.frozen) return {};
    const RankGroup& group = op.group;
    const double numel = static_cast<double>(op.dst.count);
    const double width = static_cast<double>(dtype_size(op.dst.dtype));
    const double local = copying(numel * (sizeof(float) + width));
    if (group.count == 1) return computation(local);
    if (!machine_.topology) return {0, local};
    return {0, machine_.topology->all_gather(group, numel * width)};
  }

  StepCost reduce(const Operation& op) const {
    StepCost cost = reduction(op);
    if (op.stages.update) cost.compute += update(op).compute;
    return cost;
  }

  // Each rank sums one span over all copies, then copies the other spans.
  StepCost all_reduce(const Operation& op) const {
    const RankGroup& group = op.group;
    if (group.count == 1) return {};
    const double bytes = static_cast<double>(op.dst.bytes());
    if (machine_.topology) return {0, machine_.topology->all_reduce(group, bytes)};
    const double span = bytes / group.count;
    return {0, 2 * kLocalSignal + copying(span * (group.count + 1) + 2 * span * (group.count - 1))};
  }

  StepCost exchange(const Operation&) const { return {0, exchange()}; }

  // Norms of all parameters, at the price of an update per element, and their exchanges.
  StepCost trust(const Operation&) const {
    double seconds = 0;
    size_t parameters = 0;
    for (const Unit& unit : plan_.units) {
      seconds += updating(plan_.most_owned(unit));
      parameters += unit.params.size();
    }
    const double norms = 2.0 * static_cast<double>(parameters);
    const double exchanges = plan_.across_ranks ? norms : std::ceil(norms / kMaxExchange);
    return {computation(seconds).compute, exchanges * exchange()};
  }

  // All ranks wait for the busiest one.
  StepCost orthogonalize(const Operation& op) const {
    if (machine_.rates.products <= 0) return {};
    std::vector<double> of_owner(static_cast<size_t>(op.group.count));
    for (const OrthogonalMatrix& m : run_.orthogonal[static_cast<size_t>(op.unit)]) {
      of_owner[static_cast<size_t>(m.owner)] += orthogonal_flops(m);
    }
    return computation(std::ranges::max(of_owner) / machine_.rates.products);
  }

  // Reads all weights once in every `watch_interval` updates. Ignores the cache.
  StepCost watch(const Operation& op) const {
    int64_t owned = 0;
    for (const Unit& unit : plan_.units) owned += plan_.most_owned(unit);
    const auto interval = static_cast<double>(run_.watch_interval);
    return {computation(copying(sizeof(float) * static_cast<double>(owned))).compute / interval,
            all_reduce(op).communication / interval};
  }

  // --- Helpers

  StepCost computation(double seconds) const { return {seconds / compute_factor_, 0}; }

  double copying(double bytes) const { return bytes / machine_.rates.copy; }

  double updating(int64_t elements) const {
    return static_cast<double>(elements) / machine_.rates.update;
  }

  double exchange() const {
    if (plan_.world == 1) return 0;
    if (!machine_.topology) return kLocalSignal;
    const Topology& t = *machine_.topology;
    return 2 * (std::ceil(std::log2(t.ranks_per_host)) * t.inside.alpha +
                std::ceil(std::log2(t.hosts)) * t.between.alpha);
  }

  StepCost reduction(const Operation& op) const {
    const RankGroup& group = op.group;
    const double width = static_cast<double>(dtype_size(op.src.dtype));
    const double owned = static_cast<double>(op.part.numel);
    const double local = copying(owned * (group.count * width + sizeof(float)));
    if (group.count == 1) return computation(local);
    if (!machine_.topology) return {0, kLocalSignal + local};
    const double wire = static_cast<double>(dtype_size(plan_.reduce_dtype));
    return {0, machine_.topology->all_gather(group, owned * group.count * wire)};
  }

  const CompiledRun& run_;
  const Plan& plan_;
  const StepProgram& program_;
  const Machine& machine_;
  const double compute_factor_ = machine_.topology ? machine_.topology->compute_factor : 1;
};

}  // namespace

Status measure_kernels(const std::vector<const CompiledRun*>& plans,
                       std::chrono::milliseconds budget, KernelTimes& times) {
  const auto list = subjects_of(plans);
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
  int measured = 0;
  const auto end = Clock::now() + budget;
  for (const Subject& s : list) {
    if (times.seconds.contains(s.kernel) || !fits(s) || Clock::now() > end) continue;
    const double seconds = scratch.time(s);
    if (seconds < 0) continue;
    times.seconds[s.kernel] = seconds;
    ++measured;
  }
  times.measured += measured;
  const auto paces = pace(list, times);
  for (const Subject& s : list) {
    if (times.seconds.contains(s.kernel)) continue;
    const auto same = paces.find(s.node->op->full_name());
    const auto any = paces.find("");
    const double rate = same != paces.end() ? same->second : any != paces.end() ? any->second : 0;
    times.seconds[s.kernel] = rate * static_cast<double>(s.bytes);
    ++times.estimated;
  }
  return {};
}

Result<MachineRates> measure_rates(const CompiledRun& plan) {
  constexpr int64_t kNumel = 4 << 20;  // 16 MiB, larger than a core's caches
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

std::vector<StepCost> step_costs(const CompiledRun& run, const StepProgram& program,
                                 const Machine& machine) {
  const StepPricer pricer(run, program, machine);
  std::vector<StepCost> costs(program.schedule.steps.size());
  for (const Operation& op : lower(program, lowering(run, 0)).operations) {
    const StepCost cost = pricer.price(op);
    costs[static_cast<size_t>(op.step)].compute += cost.compute;
    costs[static_cast<size_t>(op.step)].communication += cost.communication;
  }
  return costs;
}

int64_t times_an_update(const ProgramKey& key, const CompiledRun& run) {
  const SamplerOptions& batch = run.train_sampler->options();
  if (!key.training || key.batch != batch.batch_size || key.length > 0) return 0;
  const bool middle = !key.first_micro && !key.last_micro;
  return middle ? batch.grad_accum - 2 : 1;
}

Simulation simulate_program(const CompiledRun& run, const StepProgram& program,
                            const Machine& machine) {
  SimulationOptions how;
  if (machine.topology) how = {machine.topology->overlap, machine.topology->contention};
  return simulate(program.graph, run.shards, program.schedule, run.slots,
                  step_costs(run, program, machine), how);
}

double predicted_seconds(const CompiledRun& run, const Machine& machine) {
  double seconds = 0;
  for (const auto& [key, program] : run.programs) {
    const auto times = static_cast<double>(times_an_update(key, run));
    if (times > 0) seconds += times * simulate_program(run, program, machine).seconds;
  }
  return seconds;
}

}  // namespace ofsdp::runtime
