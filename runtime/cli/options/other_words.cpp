// Words of other programs: names that the command line and YAML files take as well, and names that
// they do not take but answer with ours. A row that names nothing we have does no harm.
#include <algorithm>

#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {
namespace {

// A word that people know from elsewhere, with '-' between its parts, and our name for it.
struct OtherWord {
  std::string_view word, meaning;
};

constexpr OptionSynonym kSynonyms[] = {
    {"bf16", "param-dtype", "bfloat16"},
    {"fp16", "param-dtype", "float16"},
    {"learning-rate", "lr"},
    {"max-steps", "steps"},
    {"num-epochs", "epochs"},
};

// Values that are taken under another name, in any case.
constexpr OtherWord kValues[] = {
    {"bf16", "bfloat16"},
    {"fp16", "float16"},
    {"fp32", "float32"},
    {"gpu", "cuda"},
};

constexpr OtherWord kMeanings[] = {
    // Data and loss
    {"dataset", "data"},
    {"dataset-path", "data"},
    {"data-dir", "data"},
    {"data-path", "data"},
    {"train-file", "data"},
    {"val", "eval-data"},
    {"val-data", "eval-data"},
    {"valid", "eval-data"},
    {"validation", "eval-data"},
    {"validation-data", "eval-data"},
    {"validation-file", "eval-data"},
    {"test-data", "eval-data"},
    {"metric", "eval-metrics"},
    {"compute-metrics", "eval-metrics"},
    {"eval-steps", "eval-interval"},
    {"eval-every", "eval-interval"},
    {"eval-strategy", "eval-interval"},
    {"val-check-interval", "eval-interval"},
    {"early-stopping", "early-stop"},
    {"patience", "early-stop"},
    {"criterion", "loss"},
    {"loss-fn", "loss"},
    {"loss-function", "loss"},
    {"objective", "loss"},
    {"label", "labels"},
    {"target", "labels"},
    {"targets", "labels"},
    {"label-names", "labels"},
    {"ignore-label", "ignore-index"},
    {"smoothing", "label-smoothing"},
    {"label-smoothing-factor", "label-smoothing"},
    {"frozen", "freeze"},
    {"trainable", "train"},
    {"use-lora", "lora"},
    {"lora-r", "lora-rank"},
    {"target-modules", "lora"},
    {"num-labels", "replace-head"},
    {"num-classes", "replace-head"},
    {"sync-bn", "sync-batch-norm"},
    // Length and batch
    {"batch", "batch-size"},
    {"bs", "batch-size"},
    {"b", "batch-size"},
    {"micro-batch-size", "batch-size"},
    {"train-batch-size", "batch-size"},
    {"per-device-train-batch-size", "batch-size"},
    {"total-batch-size", "global-batch-size"},
    {"accumulate", "grad-accum"},
    {"accumulation-steps", "grad-accum"},
    {"gradient-accumulation", "grad-accum"},
    {"num-train-epochs", "epochs"},
    {"max-epochs", "epochs"},
    {"n-epochs", "epochs"},
    {"iterations", "steps"},
    {"iters", "steps"},
    {"max-iters", "steps"},
    {"num-steps", "steps"},
    {"train-steps", "steps"},
    {"max-train-steps", "steps"},
    {"updates", "steps"},
    {"random-seed", "seed"},
    {"random-state", "seed"},
    {"dataloader-drop-last", "drop-last"},
    // Optimizer and learning rate
    {"optim", "optimizer"},
    {"opt", "optimizer"},
    {"rate", "lr"},
    {"base-lr", "lr"},
    {"step-lr", "lr-schedule"},
    {"scheduler", "lr-schedule"},
    {"lr-scheduler", "lr-schedule"},
    {"lr-scheduler-type", "lr-schedule"},
    {"lr-decay-style", "lr-schedule"},
    {"warmup", "warmup-steps"},
    {"warmup-ratio", "warmup-steps"},
    {"lr-warmup-steps", "warmup-steps"},
    {"num-warmup-steps", "warmup-steps"},
    {"min-lr", "min-lr-ratio"},
    {"decay", "weight-decay"},
    {"wd", "weight-decay"},
    {"l2", "weight-decay"},
    {"beta1", "betas"},
    {"beta2", "betas"},
    {"adam-beta1", "betas"},
    {"adam-beta2", "betas"},
    {"adam-epsilon", "eps"},
    {"epsilon", "eps"},
    {"clip", "clip-grad-norm"},
    {"clip-grad", "clip-grad-norm"},
    {"grad-clip", "clip-grad-norm"},
    {"gradient-clip", "clip-grad-norm"},
    {"gradient-clip-val", "clip-grad-norm"},
    {"max-grad-norm", "clip-grad-norm"},
    {"max-norm", "clip-grad-norm"},
    {"ema-decay", "ema"},
    {"param-groups", "group"},
    // Memory and precision
    {"sharding", "strategy"},
    {"sharding-strategy", "strategy"},
    {"parallel", "strategy"},
    {"zero", "strategy"},
    {"zero-stage", "strategy"},
    {"fsdp", "strategy"},
    {"ddp", "strategy"},
    {"dtype", "param-dtype"},
    {"precision", "param-dtype"},
    {"torch-dtype", "param-dtype"},
    {"amp", "param-dtype"},
    {"half", "param-dtype"},
    {"fp32", "param-dtype"},
    {"tf32", "matmul-precision"},
    {"offload", "cpu-offload"},
    {"recompute", "activation-checkpointing"},
    {"remat", "activation-checkpointing"},
    {"gradient-checkpointing", "activation-checkpointing"},
    {"max-memory", "memory-limit"},
    {"memory", "memory-limit"},
    {"auto-wrap-policy", "wrap"},
    {"transformer-layer-cls", "wrap-layers"},
    // Ranks and devices
    {"workers", "nproc-per-node"},
    {"num-workers", "nproc-per-node"},
    {"np", "nproc-per-node"},
    {"nproc", "nproc-per-node"},
    {"nprocs", "nproc-per-node"},
    {"procs", "nproc-per-node"},
    {"ranks", "nproc-per-node"},
    {"gpus", "nproc-per-node"},
    {"devices", "nproc-per-node"},
    {"world-size", "nproc-per-node"},
    {"hosts", "nnodes"},
    {"nodes", "nnodes"},
    {"num-threads", "threads"},
    {"cores", "threads"},
    {"j", "threads"},
    {"accelerator", "device"},
    {"cuda", "device"},
    {"gpu", "device"},
    {"use-cpu", "device"},
    {"no-cuda", "device"},
    {"hostlist", "hostfile"},
    {"machinefile", "hostfile"},
    // Files and screen
    {"jsn", "json"},
    {"out", "output"},
    {"output-file", "output"},
    {"output-model", "output"},
    {"save", "output"},
    {"save-path", "output"},
    {"save-dir", "checkpoint-dir"},
    {"ckpt", "checkpoint-dir"},
    {"ckpt-dir", "checkpoint-dir"},
    {"checkpoints", "checkpoint-dir"},
    {"default-root-dir", "checkpoint-dir"},
    {"save-every", "checkpoint-interval"},
    {"save-interval", "checkpoint-interval"},
    {"save-steps", "checkpoint-interval"},
    {"save-strategy", "checkpoint-interval"},
    {"save-total-limit", "keep-checkpoints"},
    {"load-best-model-at-end", "keep-best"},
    {"load", "resume"},
    {"load-checkpoint", "resume"},
    {"restore", "resume"},
    {"continue", "resume"},
    {"init-from", "resume"},
    {"pretrained", "resume"},
    {"resume-from-checkpoint", "resume"},
    {"report-to", "log"},
    {"logger", "log"},
    {"logdir", "log"},
    {"csv", "log"},
    {"log-every", "log-interval"},
    {"log-freq", "log-interval"},
    {"logging-steps", "log-interval"},
    {"log-every-n-steps", "log-interval"},
    {"profile", "trace"},
    {"profiler", "trace"},
    {"cfg", "config"},
    {"conf", "config"},
    {"yaml", "config"},
    {"v", "verbose"},
    {"debug", "verbose"},
    {"silent", "quiet"},
    // Values
    {"fully-sharded", "full_shard"},
    {"zero3", "full_shard"},
    {"zero-3", "full_shard"},
    {"fsdp", "full_shard"},
    {"fsdp2", "full_shard"},
    {"zero2", "shard_grad_op"},
    {"zero-2", "shard_grad_op"},
    {"ddp", "no_shard"},
    {"none", "no_shard"},
    {"replicate", "no_shard"},
    {"hsdp", "hybrid_shard"},
    {"ce", "cross_entropy"},
    {"cross-entropy-loss", "cross_entropy"},
    {"crossentropyloss", "cross_entropy"},
    {"crossentropy", "cross_entropy"},
    {"categorical-crossentropy", "cross_entropy"},
    {"sparse-categorical-crossentropy", "cross_entropy"},
    {"softmax", "cross_entropy"},
    {"nll-loss", "nll"},
    {"bcewithlogitsloss", "bce_with_logits"},
    {"binary-crossentropy", "bce"},
    {"l1-loss", "l1"},
    {"l1loss", "l1"},
    {"huber", "smooth_l1"},
    {"smooth-l1-loss", "smooth_l1"},
    {"smoothl1loss", "smooth_l1"},
    {"l2", "mse"},
    {"l2-loss", "mse"},
    {"mse-loss", "mse"},
    {"mseloss", "mse"},
    {"mean-squared-error", "mse"},
    {"infonce", "contrastive"},
    {"acc", "accuracy"},
    {"top1", "accuracy"},
    {"f1-score", "f1"},
    {"auroc", "auc"},
    {"roc-auc", "auc"},
    {"ppl", "perplexity"},
    {"rms", "rmse"},
    {"l1", "mae"},
    {"r-squared", "r2"},
    {"momentum", "sgd"},
    {"adamw-torch", "adamw"},
    {"one-cycle", "onecycle"},
    {"onecyclelr", "onecycle"},
    {"cosine-annealing", "cosine"},
    {"cosineannealinglr", "cosine"},
    {"cosine-with-restarts", "cosine_restarts"},
    {"constant-with-warmup", "constant"},
    {"warmup-stable-decay", "wsd"},
    {"exp", "exponential"},
    {"poly", "polynomial"},
    {"steplr", "step"},
    {"fp64", "float32"},
    {"8bit", "int8"},
    {"nvidia", "cuda"},
    {"gpu", "cuda"},
    // Commands
    {"fit", "train"},
    {"run", "train"},
    {"finetune", "train"},
    {"evaluate", "eval"},
    {"test", "eval"},
    {"validate", "eval"},
    {"estimate", "plan"},
    {"diagnose", "doctor"},
    {"infer", "predict"},
    {"convert", "export"},
    {"init", "config"},
    {"example", "demo"},
    {"operators", "ops"},
};

}  // namespace

std::span<const OptionSynonym> option_synonyms() { return kSynonyms; }

const OptionSynonym* find_synonym(std::string_view name) {
  const auto* const found = std::ranges::find(kSynonyms, name, &OptionSynonym::name);
  return found == std::end(kSynonyms) ? nullptr : found;
}

std::string log_hint(std::string_view name) {
  for (const std::string_view log : {"tensorboard", "wandb", "mlflow"}) {
    if (name == log) return format_text("; use --log {}:DIR", log);
  }
  return "";
}

std::string matched_name(const std::string& text, const std::vector<std::string>& names) {
  const auto is_name = [&](const std::string& name) { return std::ranges::count(names, name) > 0; };
  if (is_name(text)) return text;
  std::string word = lowered(text);
  for (const OtherWord& other : kValues) {
    if (word == other.word && is_name(std::string(other.meaning))) {
      return std::string(other.meaning);
    }
  }
  std::ranges::replace(word, '-', '_');
  return is_name(word) ? word : text;
}

std::string name_hint(std::string_view name, const std::vector<std::string>& known) {
  std::string word = lowered(name);
  std::ranges::replace(word, '_', '-');
  for (const OtherWord& other : kMeanings) {
    if (word != other.word) continue;
    const std::string same = nearest_name(other.meaning, known);  // with '_' or '-'
    if (yaml_key(same) == yaml_key(std::string(other.meaning))) {
      return "; did you mean '" + same + "'?";
    }
  }
  return did_you_mean(name, known);
}

}  // namespace ofsdp::cli
