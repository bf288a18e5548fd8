#include "runtime/cli/config/question_list.h"

namespace ofsdp::cli {
namespace {

bool always(const Options&) { return true; }

bool in_blocks(const Options& o) { return o.sharding.wrap == WrapPolicy::kTransformer; }
bool by_size(const Options& o) { return o.sharding.wrap == WrapPolicy::kSize; }
bool in_groups(const Options& o) {
  return o.sharding.strategy == Strategy::kHybridShard ||
         o.sharding.strategy == Strategy::kHybridShardZero2;
}
bool lower_precision(const Options& o) { return o.sharding.param_dtype != DType::kFloat32; }
bool scheduled(const Options& o) { return o.schedule.kind != ScheduleKind::kConstant; }
bool in_steps(const Options& o) { return o.schedule.kind == ScheduleKind::kStep; }
bool endless(const Options& o) { return o.run.data.kind == DataChoice::Kind::kSynthetic; }
bool ends(const Options& o) { return !endless(o); }
bool saves(const Options& o) { return !o.checkpoint.dir.empty(); }

constexpr Question kQuestions[] = {
    {"nproc-per-node", "How many ranks on this host?", always},
    {"strategy", "What is sharded over them?", always, true},
    {"shard-size", "How many ranks share one copy?", in_groups},
    {"wrap", "What becomes a unit, gathered at once?", always, true},
    {"wrap-layers", "Which repeated blocks (class names, comma-separated)?", in_blocks},
    {"min-params", "Fewest parameters in a unit?", by_size},
    {"param-dtype", "In which type are parameters gathered and used?", always, true},
    {"reduce-dtype", "In which type are gradients summed?", lower_precision, true},
    {"activation-checkpointing", "What is computed again in backward to save memory?", always,
     true},
    {"memory-limit", "Most memory of a rank (such as 12GiB)?", always},
    {"data", "Where are the training data?", always},
    {"loss", "Which loss?", always, true},
    {"optimizer", "Which optimizer?", always, true},
    {"lr", "Learning rate?", always},
    {"weight-decay", "Weight decay?", always},
    {"lr-schedule", "How does the learning rate change?", always, true},
    {"step-size", "How many epochs between two changes?", in_steps},
    {"warmup-steps", "Updates of warm-up?", scheduled},
    {"clip-grad-norm", "Largest norm of the gradient?", always},
    {"batch-size", "Samples a rank puts through one forward?", always},
    {"grad-accum", "Forwards before an update?", always},
    {"epochs", "How many epochs?", ends},
    {"steps", "How many updates?", endless},
    {"checkpoint-dir", "Where do checkpoints go?", always},
    {"checkpoint-interval", "How often (Nepoch, Nstep)?", saves},
    {"output", "Where does the trained ONNX file go?", always}};

}  // namespace

std::span<const Question> question_list() { return kQuestions; }

}  // namespace ofsdp::cli
