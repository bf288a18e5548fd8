#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "fsdp/checkpoint/disk.h"
#include "runtime/compile/saved_slices.h"
#include "runtime/engine/shared_text.h"
#include "runtime/train/rank_state.h"
#include "runtime/train/setup/class_names.h"

namespace ofsdp::runtime {
namespace {

// Rank 0 makes the temporary file and sends the path to the others.
Result<std::unique_ptr<TrainedOutput>> open_output(const TrainingSource& source,
                                                   Communicator& communicator,
                                                   const std::string& path,
                                                   const TrainedState& trained) {
  if (communicator.rank() != 0) {
    OFSDP_ASSIGN_OR_RETURN(const std::string ticket, text_of_rank0(communicator, ""));
    return source.join_output(ticket, trained);
  }
  OFSDP_ASSIGN_OR_RETURN(auto output, source.begin_output(path, trained));
  OFSDP_RETURN_IF_ERROR(text_of_rank0(communicator, output->ticket()).status());
  return output;
}

// Writes this rank's share in one unit: parameters (or their average), and the states for which the
// output has a place.
Status write_unit(const RankState& state, const Unit& unit, const TrainedOutput& output) {
  const auto parameter = [&](const ShardPart& part) -> const Parameter& {
    return state.parameter(part.param.parameter);
  };
  const UpdatePlan& updates = state.plan().updates;
  const int weights = state.plan().uses_average ? updates.average_state() : -1;
  OFSDP_RETURN_IF_ERROR(state.share(unit, weights).for_each_part([&](const ShardPart& part) {
    return output.write(parameter(part), part.first, part.values);
  }));
  const size_t states = updates.states.size() - (updates.average_decay ? 1 : 0);
  for (size_t k = 0; k < states; ++k) {
    OFSDP_RETURN_IF_ERROR(
        state.each_shared_state(unit, static_cast<int>(k), [&](const ShardPart& part) {
          return output.write_state(parameter(part), k, part.first, part.values);
        }));
  }
  return {};
}

// Rank 0: writes running statistics, the update count and other values that all parameters
// share.
Status write_common(RankState& state, const TrainedOutput& output) {
  for (const KeptValues::Entry* entry : carried_entries(state.plan())) {
    OFSDP_RETURN_IF_ERROR(
        output.write(state.parameter(entry->parameter), 0, state.statistic(*entry)));
  }
  if (state.update_program() == nullptr) return {};
  const int64_t done =
      state.executor().updates_done(state.plan().train_sampler->options().start.update);
  for (size_t i = 0; i < state.setup().source->updates()->scalars.size(); ++i) {
    OFSDP_RETURN_IF_ERROR(output.write_scalar(i, state.update_program()->scalar_after(i, done)));
  }
  return {};
}

// Returns trained scales for quantized values, whole on every rank; empty in most runs.
Result<NamedScales> gather_scales(const RankState& state, Communicator& communicator) {
  std::set<std::string> names;
  for (const Node& node : state.setup().graph.nodes) {
    if (!node.op->fake_quantizes) continue;
    names.insert(state.setup().graph.value(node.inputs[1]).name);
  }
  NamedScales scales;
  for (const Unit& unit : state.plan().shards.units) {
    for (const UnitParam& param : unit.params) {
      const Parameter& p = state.parameter(param.parameter);
      if (!names.contains(p.name)) continue;
      scales[p.name].resize(static_cast<size_t>(state.setup().graph.value(p.value).desc.numel()));
    }
  }
  if (scales.empty()) return scales;
  for (const Unit& unit : state.plan().shards.units) {
    OFSDP_RETURN_IF_ERROR(state.share(unit, -1).for_each_part([&](const ShardPart& part) -> Status {
      const auto found = scales.find(state.parameter(part.param.parameter).name);
      if (found != scales.end()) std::ranges::copy(part.values, found->second.begin() + part.first);
      return {};
    }));
  }
  const auto world = static_cast<size_t>(communicator.size());
  for (auto& [name, values] : scales) {
    for (size_t at = 0; at < values.size(); at += fsdp::kMaxExchange) {
      const size_t n = std::min(values.size() - at, size_t{fsdp::kMaxExchange});
      const std::vector<double> mine(values.begin() + static_cast<ptrdiff_t>(at),
                                     values.begin() + static_cast<ptrdiff_t>(at + n));
      std::vector<double> all(n * world);
      OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, {"output scales", -1, 0}));
      for (size_t i = 0; i < n; ++i) {  // one rank has the value, the others 0
        double sum = 0;
        for (size_t rank = 0; rank < world; ++rank) sum += all[rank * n + i];
        values[at + i] = static_cast<float>(sum);
      }
    }
  }
  return scales;
}

// Rank 0: writes scales that follow from trained ones, and frozen biases in these scales.
Status write_followers(const RankState& state, const TrainedOutput& output,
                       const std::map<int, std::vector<float>>& rescaled) {
  const OnnxFile& file = state.setup().file;
  for (const Parameter& p : state.setup().graph.parameters) {
    const auto& weights = file.initializers();
    for (const auto& [index, scales] : rescaled) {
      const Initializer& weight = weights[static_cast<size_t>(index)];
      const bool follows = !weight.quantization->factors.empty();
      if (follows && weight.quantization->scale == p.name) {
        OFSDP_RETURN_IF_ERROR(output.write(p, 0, scales));
      }
      if (!follows || p.initializer != index || p.trained || p.of_teacher) continue;
      std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
      OFSDP_RETURN_IF_ERROR(file.read(weight, 0, values));
      OFSDP_RETURN_IF_ERROR(output.write(p, 0, values));
    }
  }
  return {};
}

Status write_shares(RankState& state, const TrainedOutput& output) {
  for (const Unit& unit : state.plan().shards.units) {
    OFSDP_RETURN_IF_ERROR(write_unit(state, unit, output));
  }
  if (state.rank() == 0) OFSDP_RETURN_IF_ERROR(write_common(state, output));
  return output.finish();
}

}  // namespace

Status write_trained(RankState& state, Communicator& communicator, const std::string& path,
                     const TrainedState& trained) {
  OFSDP_RETURN_IF_ERROR(state.fetch());
  OFSDP_ASSIGN_OR_RETURN(const auto output,
                         open_output(*state.setup().source, communicator, path, trained));
  OFSDP_ASSIGN_OR_RETURN(const NamedScales scales, gather_scales(state, communicator));
  OFSDP_ASSIGN_OR_RETURN(const auto rescaled, state.setup().file.rescaled(scales));
  output->rescale(rescaled);
  if (state.rank() == 0) {
    OFSDP_RETURN_IF_ERROR(write_followers(state, *output, rescaled).with_prefix(path));
  }
  OFSDP_RETURN_IF_ERROR(write_shares(state, *output).with_prefix(path));
  OFSDP_RETURN_IF_ERROR(communicator.barrier({"output barrier", -1, 0}));
  if (state.rank() != 0) return {};
  OFSDP_RETURN_IF_ERROR(output->commit());
  return write_class_names(state.setup().class_names(), path);
}

}  // namespace ofsdp::runtime
