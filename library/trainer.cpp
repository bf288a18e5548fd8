// onnx_fsdp.h's functions for trainers: one rank in the caller's process.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>

#include "fsdp/comm/rank_identity.h"
#include "kernels/base/status.h"
#include "kernels/base/text.h"
#include "kernels/cpu/parallel.h"
#include "library/settings.h"
#include "plugins/loading/loader.h"
#include "runtime/cli/command_line.h"
#include "runtime/train/batch_trainer.h"
#include "runtime/train/setup/run_files.h"

namespace ofsdp::library {

// A trainer and everything that it borrows, in dependence order. Parameters that a caller holds
// keep it alive.
struct TrainerParts {
  cli::ParsedCommand command;
  LoadedPlugins plugins;
  MemoryLedger ledger;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<BatchTrainer> trainer;
  std::vector<onnx_fsdp_metric> metrics;  // from the last evaluation
  bool failed = false;
};

}  // namespace ofsdp::library

struct onnx_fsdp_trainer {
  std::shared_ptr<ofsdp::library::TrainerParts> parts;
};

struct onnx_fsdp_parameters {
  std::shared_ptr<ofsdp::library::TrainerParts> parts;
  ofsdp::runtime::BatchTrainer::Parameters found;
};

namespace ofsdp::library {
namespace {

// Options for whole runs: a trainer's caller decides them by calls. In MODEL.yaml they have no
// effect here.
constexpr std::array<std::string_view, 19> kOfRuns = {
    "nproc-per-node", "nnodes",    "hostfile",         "data",    "eval-data",
    "eval-interval",  "epochs",    "shuffle",          "output",  "global-batch-size",
    "checkpoint-dir", "keep-best", "keep-checkpoints", "metrics", "trace",
    "run-dir",        "run-name",  "bucket-by",        "pack"};

Status check_options(const onnx_fsdp_settings& settings) {
  for (size_t i = 0; i < settings.option_count; ++i) {
    const std::string_view name = settings.options[i].name;
    OFSDP_REJECT_IF(std::ranges::count(kOfRuns, name) > 0,
                    "--{}: expected an option of a trainer, whose caller brings the batches and "
                    "decides when to evaluate and save",
                    name);
  }
  return {};
}

Status open_trainer(const onnx_fsdp_settings* given, TrainerParts& t) {
  OFSDP_ASSIGN_OR_RETURN(const onnx_fsdp_settings settings, known_settings(given));
  OFSDP_ASSIGN_OR_RETURN(const auto words, command_words("train", settings));
  OFSDP_RETURN_IF_ERROR(check_options(settings));
  const char* threads = std::getenv("OMP_NUM_THREADS");
  OFSDP_ASSIGN_OR_RETURN(
      t.command, cli::parse_command(words, threads != nullptr ? std::optional<std::string>(threads)
                                                              : std::nullopt));
  const Options& options = t.command.options;
  OFSDP_RETURN_IF_ERROR(runtime::check_run_files(options, t.command.origin));
  OFSDP_ASSIGN_OR_RETURN(t.plugins, load_plugins(options.plugins, options.plugin_override));
  OFSDP_ASSIGN_OR_RETURN(const auto identity, rank_identity_from_environment());
  const RankIdentity rank = identity.value_or(RankIdentity{});
  if (rank.rank == 0) {
    for (const std::string& warning : t.command.warnings) print_lines(stderr, warning + "\n");
  }
  set_pool_threads(
      static_cast<int>(options.launch.threads.value_or(cores_per_rank(rank.ranks_here()))));
  const auto timeout = static_cast<int64_t>(std::ceil(options.launch.timeout_seconds));
  OFSDP_ASSIGN_OR_RETURN(t.communicator, connect_ranks(rank, std::chrono::seconds(timeout)));
  t.trainer =
      std::make_unique<BatchTrainer>(RunContext{options, t.command.origin, t.plugins.registry,
                                                t.plugins.optimizers, *t.communicator, t.ledger});
  return {};
}

// A call that fails ends the other ranks' run too.
template <typename Body>
onnx_fsdp_status collective(onnx_fsdp_trainer* trainer, const Body& body) {
  return call([&]() -> Status {
    TrainerParts& parts = *trainer->parts;
    Status status = body(*parts.trainer);
    if (!status.ok() && status.kind() != ErrorKind::kPeer && !parts.failed) {
      parts.failed = true;
      parts.communicator->fail(status);
    }
    return status;
  });
}

// Copies as much of `from` as the caller's struct has.
template <typename Struct>
Status give(const Struct& from, Struct* to) {
  if (to == nullptr) return {};
  const size_t size = to->size;
  OFSDP_REJECT_IF(size > sizeof(Struct), "result: size: expected at most {}, found {}",
                  sizeof(Struct), size);
  std::memcpy(to, &from, size);
  to->size = size;
  return {};
}

}  // namespace
}  // namespace ofsdp::library

using namespace ofsdp;
using namespace ofsdp::library;

extern "C" {

onnx_fsdp_status onnx_fsdp_trainer_open(const onnx_fsdp_settings* settings,
                                        onnx_fsdp_trainer** trainer) {
  return call([&]() -> Status {
    auto parts = std::make_shared<TrainerParts>();
    OFSDP_RETURN_IF_ERROR(open_trainer(settings, *parts));
    *trainer = new onnx_fsdp_trainer{std::move(parts)};
    return {};
  });
}

onnx_fsdp_status onnx_fsdp_trainer_step(onnx_fsdp_trainer* trainer, const onnx_fsdp_array* batch,
                                        size_t count, onnx_fsdp_step* result) {
  return collective(trainer, [&](runtime::BatchTrainer& t) -> Status {
    OFSDP_ASSIGN_OR_RETURN(const auto arrays, column_arrays(batch, count));
    OFSDP_ASSIGN_OR_RETURN(const runtime::StepRow row, t.step(arrays));
    return give(onnx_fsdp_step{.size = 0,
                               .step = row.step,
                               .loss = row.loss,
                               .grad_norm = row.grad_norm,
                               .lr = row.lr,
                               .step_ms = row.step_ms,
                               .skipped = row.skipped ? 1 : 0},
                result);
  });
}

onnx_fsdp_status onnx_fsdp_trainer_evaluate(onnx_fsdp_trainer* trainer, const onnx_fsdp_array* rows,
                                            size_t count, onnx_fsdp_evaluation* result) {
  return collective(trainer, [&](runtime::BatchTrainer& t) -> Status {
    OFSDP_ASSIGN_OR_RETURN(const auto arrays, column_arrays(rows, count));
    OFSDP_ASSIGN_OR_RETURN(const runtime::EvalRow row, t.evaluate(arrays));
    std::vector<onnx_fsdp_metric>& metrics = trainer->parts->metrics;
    metrics.clear();
    for (const runtime::MetricValue& metric : row.metrics) {
      metrics.push_back({metric.name.c_str(), metric.value.value_or(std::nan(""))});
    }
    return give(onnx_fsdp_evaluation{.size = 0,
                                     .step = row.step,
                                     .loss = row.loss,
                                     .metrics = metrics.data(),
                                     .metric_count = metrics.size()},
                result);
  });
}

onnx_fsdp_status onnx_fsdp_trainer_save(onnx_fsdp_trainer* trainer, const char* path) {
  return collective(trainer,
                    [&](runtime::BatchTrainer& t) { return t.save(path == nullptr ? "" : path); });
}

onnx_fsdp_status onnx_fsdp_trainer_parameters(onnx_fsdp_trainer* trainer,
                                              onnx_fsdp_parameters** parameters) {
  return call([&]() -> Status {
    OFSDP_ASSIGN_OR_RETURN(auto found, trainer->parts->trainer->parameters());
    *parameters = new onnx_fsdp_parameters{trainer->parts, std::move(found)};
    return {};
  });
}

size_t onnx_fsdp_parameters_count(const onnx_fsdp_parameters* parameters) {
  return parameters->found.all.size();
}

onnx_fsdp_array onnx_fsdp_parameters_at(const onnx_fsdp_parameters* parameters, size_t index) {
  const auto& one = parameters->found.all[index];
  return {one.name.c_str(), ONNX_FSDP_FLOAT32, static_cast<int32_t>(one.dims.size()),
          one.dims.data(), one.values.data()};
}

void onnx_fsdp_parameters_close(onnx_fsdp_parameters* parameters) { delete parameters; }

void onnx_fsdp_trainer_close(onnx_fsdp_trainer* trainer) {
  if (trainer == nullptr) return;
  if (!trainer->parts->failed) static_cast<void>(trainer->parts->communicator->leave());
  delete trainer;
}

}  // extern "C"
