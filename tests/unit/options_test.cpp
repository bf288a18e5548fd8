#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/cli/options/option_table.h"
#include "runtime/train/checkpointing.h"
#include "tests/support/namespaces.h"
#include "tests/unit/options_testing.h"

namespace ofsdp {
namespace options_test {

TEST(Options, ABareModelTrainsWithTheDefaults) {
  const Options options = options_of({});
  EXPECT_EQ(options.command, Command::kTrain);
  EXPECT_EQ(options.model, "m.onnx");
  EXPECT_EQ(options.sharding.strategy, Strategy::kFullShard);
  EXPECT_EQ(options.sharding.wrap, WrapPolicy::kTransformer);
  EXPECT_EQ(options.optimizer.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(options.run.epochs, 1);
  EXPECT_FALSE(options.run.steps);
  EXPECT_FALSE(options.launch.threads);
  EXPECT_TRUE(options.run.shuffle);
  EXPECT_EQ(options.run.data.kind, DataChoice::Kind::kComputed);
}

// A resumed run reports each of these that differs: a new one must be in the list.
TEST(Options, SettingsOfTrainingAreComparedWithACheckpoints) {
  std::vector<std::string> missing;
  for (const auto& entries : {loss_entries(), trained_entries(), optimizer_entries(),
                              schedule_entries(), edit_entries()}) {
    for (const OptionEntry& entry : entries) {
      const bool a_file_that_is_written = entry.name == "adapter";
      if (!entry.in_files || a_file_that_is_written) continue;
      if (!changes_weights(yaml_key(entry.name))) missing.push_back(entry.name);
    }
  }
  EXPECT_EQ(missing, std::vector<std::string>{});
  EXPECT_FALSE(changes_weights("strategy"));
}

TEST(Options, AChangedConfigurationIsSaidKeyByKey) {
  const std::string saved =
      "lr: 0.1\nbetas: [0.9, 0.999]\ndata:\n  lr: 3\nglobal_batch_size: 8  # batch_size: 8\n"
      "lr_schedule: cosine\nsteps: 4\nthreads: 1\n";
  EXPECT_EQ(changed_settings_line(saved, saved), "");
  EXPECT_EQ(
      changed_settings_line(saved,
                            "lr: 0.2\nbetas: [0.9, 0.99]\nglobal_batch_size: 8  # batch_size: "
                            "4\nlr_schedule: cosine\nsteps: 9\nthreads: 2\neps: 1\n"),
      "lr 0.2 (was 0.1), betas [0.9, 0.99] (was [0.9, 0.999]), steps 9 (was 4; lr_schedule "
      "follows it)");
  EXPECT_EQ(changed_settings_line(saved, "lr_schedule: constant\nsteps: 9\n"),
            "lr_schedule constant (was cosine)");
}

TEST(Options, NumbersThatAreTooLargeAreSaidToBe) {
  EXPECT_THAT(
      refused({"--warmup-steps", "99999999999999999999"}),
      ::testing::HasSubstr("at least 0, found '99999999999999999999', which is more than 2^63-1"));
  EXPECT_THAT(refused({"--lr", "1e999"}),
              ::testing::HasSubstr("found '1e999', which is more than a float64"));
  EXPECT_THAT(refused({"--lr", "-1"}), ::testing::Not(::testing::HasSubstr("more than")));
}

TEST(Options, CommandsAreTheFirstWord) {
  EXPECT_EQ(parse({"train", "m.onnx"})->options.command, Command::kTrain);
  EXPECT_EQ(parse({"plan", "m.onnx"})->options.command, Command::kPlan);
  EXPECT_EQ(parse({"--seed", "1", "eval", "m.onnx"})->options.command, Command::kEval);
  EXPECT_TRUE(parse({"ops", "--json"})->options.json);
  EXPECT_EQ(parse({"--", "-m.onnx"})->options.model, "-m.onnx");
}

TEST(Options, WrongCommandsAreRefused) {
  EXPECT_EQ(refusal({"plan"}),
            "fsdp-run plan: expected MODEL.onnx, found nothing; fsdp-run --help lists the options");
  EXPECT_EQ(refusal({"paln"}),
            "paln: expected a command or MODEL.onnx, found no such file; did you mean 'plan'?");
  EXPECT_EQ(refusal({"trian", "m.onnx"}),
            "fsdp-run train: expected one MODEL.onnx, found 2 words: 'trian' 'm.onnx'; did you "
            "mean 'train'?");
  EXPECT_EQ(refusal({"ops", "m.onnx"}), "fsdp-run ops: expected no file, found 1 words: 'm.onnx'");
  EXPECT_EQ(refused({"--verify"}), "--verify has no effect with fsdp-run train");
}

// The table lists the commands that take an option; the others refuse it rather than ignore it.
TEST(Options, CommandsRefuseOptionsOfOthers) {
  EXPECT_EQ(refusal({"ops", "--lr", "0.1"}), "--lr has no effect with fsdp-run ops");
  EXPECT_EQ(refusal({"predict", "m.onnx", "--param-dtype", "bfloat16"}),
            "--param-dtype has no effect with fsdp-run predict");
  EXPECT_EQ(refusal({"export", "ck", "--resume", "x"}),
            "--resume has no effect with fsdp-run export");
  EXPECT_EQ(refusal({"make-training", "m.onnx", "--resume", "x"}),
            "--resume has no effect with fsdp-run make-training");
  EXPECT_EQ(refusal({"data", "d", "--epochs", "3"}), "--epochs has no effect with fsdp-run data");
  EXPECT_EQ(parse({"predict", "m.onnx", "--resume", "ck"})->options.checkpoint.resume, "ck");
  EXPECT_EQ(parse({"export", "ck", "--ema-use", "off"})->options.optimizer.ema_use, false);
  EXPECT_EQ(refused({"--lora-rank", "4"}), "--lora-rank has no effect with --lora none");
  EXPECT_EQ(refused({"--lora-alpha", "4"}), "--lora-alpha has no effect with --lora none");
}

TEST(Options, HelpListsEveryOption) {
  const Result<ParsedCommand> parsed = parse({"m.onnx", "--lr", "x", "--help"});
  ASSERT_TRUE(parsed.ok());
  ASSERT_TRUE(parsed->options.help);
  for (const std::string& name : entry_names(option_table())) {
    EXPECT_NE(full_help_text().find("  --" + name + " "), std::string::npos) << name;
  }
  EXPECT_EQ(parsed->help, help_text());
}

// Words from other programs are taken.
TEST(Options, OtherNamesOfOptionsAreTaken) {
  const Options options = options_of({"--learning-rate", "0.5", "--max-steps=7", "--num-epochs",
                                      "3", "--bf16", "-n", "2", "-o", "t.onnx", "--dry-run"});
  EXPECT_EQ(options.optimizer.lr, 0.5);
  EXPECT_EQ(options.run.steps, 7);
  EXPECT_EQ(options.run.epochs, 3);
  EXPECT_EQ(options.sharding.param_dtype, DType::kBFloat16);
  EXPECT_EQ(options.launch.nproc_per_node, 2);
  EXPECT_EQ(options.files.output, "t.onnx");
  EXPECT_EQ(options.command, Command::kPlan);
  EXPECT_EQ(options_of({"--fp16", "on"}).sharding.param_dtype, DType::kFloat16);
  EXPECT_EQ(options_of({"--fp16=False"}).sharding.param_dtype, DType::kFloat32);
  EXPECT_EQ(options_of({"--bf16", "--param-dtype", "fp32"}).sharding.param_dtype, DType::kFloat32);
  EXPECT_EQ(refused({"--bf16=3"}), "--bf16: expected on or off, found '3'");
  EXPECT_EQ(refused({"--learning-rate"}), "--learning-rate: expected a value, found nothing");
  EXPECT_EQ(refusal({"export", "ck", "--dry-run"}), "--dry-run has no effect with fsdp-run export");
}

TEST(Options, ValuesAreTakenInAnyCase) {
  const Options options =
      options_of({"--strategy",      "FULL_SHARD", "--optimizer",    "Adam",
                  "--param-dtype",   "BF16",       "--reduce-dtype", "fp32",
                  "--device",        "gpu",        "--lr-schedule",  "Cosine-Restarts",
                  "--restart-steps", "3",          "--loss",         "Cross_Entropy",
                  "--state-dtype",   "bf16",       "--eval-metrics", "Accuracy,Top5",
                  "--keep-best",     "Top5",       "--drop-last",    "True",
                  "--memory-limit",  "None"});
  EXPECT_EQ(options.sharding.strategy, Strategy::kFullShard);
  EXPECT_EQ(options.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(options.sharding.param_dtype, DType::kBFloat16);
  EXPECT_EQ(options.sharding.reduce_dtype, DType::kFloat32);
  EXPECT_EQ(options.launch.device, DeviceChoice::kCuda);
  EXPECT_EQ(options.schedule.kind, ScheduleKind::kCosineRestarts);
  EXPECT_EQ(options.losses[0].kind, LossKind::kCrossEntropy);
  EXPECT_EQ(options.optimizer.state_dtype, StateDType::kBFloat16);
  ASSERT_EQ(options.run.eval_metrics.size(), 2u);
  EXPECT_EQ(options.run.eval_metrics[0].name, "accuracy");
  EXPECT_EQ(options.run.eval_metrics[1].name, "top5");
  EXPECT_EQ(options.checkpoint.keep_best, "top5");
  EXPECT_TRUE(options.run.drop_last);
  EXPECT_FALSE(options.sharding.memory_limit);
}

// The meaning of another program's word comes before names with similar letters.
TEST(Options, HintsKnowTheWordsOfOtherPrograms) {
  const auto hint = [](const Words& flags) {
    const std::string line = refused(flags);
    const size_t at = line.find("; ");
    return at == std::string::npos ? line : line.substr(at + 2);
  };
  for (const auto& [word, meant] :
       std::vector<std::pair<std::string, std::string>>{{"jsn", "json"},
                                                        {"lr-scheduler", "lr-schedule"},
                                                        {"weight_decay", "weight-decay"},
                                                        {"weightdecay", "weight-decay"},
                                                        {"wd", "weight-decay"},
                                                        {"batch", "batch-size"},
                                                        {"bs", "batch-size"},
                                                        {"workers", "nproc-per-node"},
                                                        {"epochs-num", "epochs"},
                                                        {"num-epoch", "num-epochs"},
                                                        {"momentun", "momentum"},
                                                        {"patience", "early-stop"},
                                                        {"max-grad-norm", "clip-grad-norm"},
                                                        {"save-dir", "checkpoint-dir"}}) {
    EXPECT_EQ(hint({"--" + word, "1"}), "did you mean '--" + meant + "'?") << word;
  }
  for (const auto& [flag, value, meant] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"--strategy", "ddp", "no_shard"},
           {"--strategy", "FullShard", "full_shard"},
           {"--optimizer", "adamw_torch", "adamw"},
           {"--loss", "CrossEntropyLoss", "cross_entropy"},
           {"--loss", "bcewithlogitsloss", "bce_with_logits"},
           {"--eval-metrics", "acc", "accuracy"},
           {"--eval-metrics", "roc_auc", "auc"},
           {"--lr-schedule", "cosine_with_restarts", "cosine_restarts"}}) {
    EXPECT_EQ(hint({flag, value}), "did you mean '" + meant + "'?") << value;
  }
  EXPECT_EQ(refusal({"evaluate", "m.onnx"}),
            "fsdp-run train: expected one MODEL.onnx, found 2 words: 'evaluate' 'm.onnx'; did you "
            "mean 'eval'?");
  EXPECT_EQ(refused({"--tensorboard=runs"}),
            "unknown option --tensorboard; use --log tensorboard:DIR");
}

// Users' commands contain these flags. Other checks of all flags read the table itself, so only
// this separate list notices a removed or renamed flag. A new flag need not be in it.
TEST(Options, KeepsTheFlagsOfTheContract) {
  const std::vector<OptionEntry> table = option_table();
  for (const char* name : {"strategy",
                           "shard-size",
                           "nproc-per-node",
                           "threads",
                           "device",
                           "cuda-graph",
                           "wrap",
                           "wrap-layers",
                           "min-params",
                           "ignore",
                           "loss",
                           "prediction",
                           "labels",
                           "ignore-index",
                           "label-smoothing",
                           "freeze",
                           "train",
                           "batch-axis",
                           "free-batch",
                           "input",
                           "nhwc-weights",
                           "optimizer",
                           "lr",
                           "weight-decay",
                           "momentum",
                           "nesterov",
                           "betas",
                           "eps",
                           "rho",
                           "state-dtype",
                           "no-decay",
                           "group",
                           "ema",
                           "ema-use",
                           "lr-schedule",
                           "warmup-steps",
                           "total-steps",
                           "min-lr-ratio",
                           "power",
                           "step-size",
                           "gamma",
                           "schedule-unit",
                           "milestones",
                           "decay-steps",
                           "restart-steps",
                           "restart-mult",
                           "pct-start",
                           "div-factor",
                           "final-div-factor",
                           "clip-grad-norm",
                           "batch-size",
                           "grad-accum",
                           "global-batch-size",
                           "epochs",
                           "steps",
                           "shuffle",
                           "seed",
                           "drop-last",
                           "param-dtype",
                           "reduce-dtype",
                           "buffer-dtype",
                           "matmul-precision",
                           "activation-checkpointing",
                           "cpu-offload",
                           "backward-prefetch",
                           "forward-prefetch",
                           "prefetch-depth",
                           "memory-limit",
                           "data",
                           "eval-data",
                           "eval-interval",
                           "eval-metrics",
                           "early-stop",
                           "log",
                           "checkpoint-dir",
                           "checkpoint-interval",
                           "keep-checkpoints",
                           "keep-best",
                           "checkpoint-type",
                           "checkpoint-sync",
                           "save-on-signal",
                           "overwrite-checkpoints",
                           "resume",
                           "output",
                           "run-dir",
                           "run-name",
                           "plugin",
                           "plugin-override",
                           "make-plugin",
                           "metrics",
                           "trace",
                           "log-interval",
                           "watch",
                           "verbose",
                           "timeout",
                           "deterministic",
                           "loss-mean",
                           "qat-scales",
                           "sync-batch-norm",
                           "nnodes",
                           "node-rank",
                           "rdzv-endpoint",
                           "min-nodes",
                           "max-restarts",
                           "rdzv-id"}) {
    EXPECT_NE(find_entry(table, name), nullptr) << name;
  }
}

TEST(Options, UnknownOptionsNameTheNearest) {
  EXPECT_EQ(refused({"--stratgy", "full_shard"}),
            "unknown option --stratgy; did you mean '--strategy'?");
  EXPECT_EQ(refused({"--batch_size=3"}),
            "unknown option --batch_size; did you mean '--batch-size'?");
  EXPECT_EQ(refused({"-x"}), "unknown option -x");
}

TEST(Options, ValuesFollowOrStandBehindEquals) {
  EXPECT_EQ(options_of({"--seed", "7"}).run.seed, 7u);
  EXPECT_EQ(options_of({"--seed=18446744073709551615"}).run.seed, UINT64_MAX);
  EXPECT_EQ(options_of({"--loss", "nll", "--ignore-index", "-1"}).losses[0].ignore_index, -1);
  EXPECT_EQ(options_of({"--seed", "7", "--seed", "8"}).run.seed, 8u);
  EXPECT_EQ(refused({"--seed"}), "--seed: expected a value, found nothing");
  EXPECT_EQ(refused({"--seed", "--lr", "1"}), "--seed: expected a value, found '--lr'");
}

TEST(Options, AContrastiveLossNamesTwoOutputs) {
  const LossSpec loss = options_of({"--loss", "contrastive:image:text:0.1"}).losses[0];
  EXPECT_EQ(loss.kind, LossKind::kContrastive);
  EXPECT_EQ(loss.output + " " + loss.other, "image text");
  EXPECT_EQ(loss.temperature, 0.1);
  EXPECT_EQ(options_of({"--loss", "contrastive:a:b"}).losses[0].temperature, 0.07);
  for (const char* text :
       {"contrastive:a", "contrastive:a:", "contrastive:a:b:0", "contrastive:a:b:x"}) {
    EXPECT_EQ(refused({"--loss", text}),
              format_text("--loss: expected contrastive:A:B or contrastive:A:B:TEMPERATURE, above "
                          "0, found '{}'",
                          text));
  }
}

TEST(Options, SwitchesStandAloneOrTakeOnAndOff) {
  EXPECT_TRUE(options_of({"--drop-last"}).run.drop_last);
  EXPECT_FALSE(options_of({"--drop-last", "off"}).run.drop_last);
  EXPECT_FALSE(options_of({"--no-shuffle"}).run.shuffle);
  EXPECT_FALSE(options_of({"--forward-prefetch", "off"}).sharding.forward_prefetch);
  EXPECT_EQ(parse({"--drop-last", "m.onnx"})->options.model, "m.onnx");
  EXPECT_EQ(refused({"--drop-last=maybe"}), "--drop-last: expected on or off, found 'maybe'");
}

TEST(Options, NamesOfAClosedSetAreChecked) {
  EXPECT_EQ(options_of({"--strategy", "no_shard"}).sharding.strategy, Strategy::kNoShard);
  const std::string wrong = refused({"--optimizer", "adamv"});
  EXPECT_TRUE(wrong.starts_with("--optimizer: expected one of adamw, adam, sgd, adadelta"))
      << wrong;
  EXPECT_TRUE(wrong.ends_with(" or plugin:NAME, found 'adamv'; did you mean 'adamw'?")) << wrong;
  EXPECT_EQ(refused({"--strategy", ""}),
            "--strategy: expected one of full_shard, shard_grad_op, no_shard, hybrid_shard, "
            "hybrid_shard_zero2, zero1, auto, found ''");
}

TEST(Options, NumbersMustBeWholeTextsInRange) {
  EXPECT_EQ(refused({"--lr", "abc"}), "--lr: expected a number of at least 0, found 'abc'");
  for (const char* text : {"-1", "nan", "inf", "0.1x", "", " 1"}) {
    EXPECT_EQ(refused({format_text("--lr={}", text)}),
              format_text("--lr: expected a number of at least 0, found '{}'", text));
  }
  EXPECT_EQ(refused({"--lr=1e999"}),
            "--lr: expected a number of at least 0, found '1e999', which is more than a float64 "
            "holds");
  EXPECT_EQ(refused({"--batch-size", "0"}),
            "--batch-size: expected a whole number of at least 1, found '0'");
  EXPECT_EQ(refused({"--batch-size", "2.5"}),
            "--batch-size: expected a whole number of at least 1, found '2.5'");
  EXPECT_EQ(refused({"--steps", "99999999999999999999"}),
            "--steps: expected none or a whole number of at least 1, found '99999999999999999999', "
            "which is more than 2^63-1");
  EXPECT_EQ(
      refused({"--nproc-per-node", "0"}),
      "--nproc-per-node: expected auto, gpu, cpu or a whole number from 1 to 4096, found '0'");
  EXPECT_EQ(
      refused({"--batch-axis", "state"}),
      "--batch-axis: expected NAME=AXIS, an input or output and a whole number or none, found "
      "'state'");
  EXPECT_EQ(refused({"--batch-axis", "a=b=1", "--batch-axis", "a=b=2"}),
            "--batch-axis: expected one axis for each name, found 'a=b=2'");
  EXPECT_EQ(refused({"--label-smoothing", "1.5"}),
            "--label-smoothing: expected a number from 0 to 1, found '1.5'");
  EXPECT_EQ(refused({"--clip-grad-norm", "0"}),
            "--clip-grad-norm: expected off or a number above 0, found '0'");
}

TEST(Options, BetasAreTwoNumbersBelowOne) {
  const Options options = options_of({"--betas", "0.8,0.95"});
  EXPECT_EQ(options.optimizer.beta1, 0.8);
  EXPECT_EQ(options.optimizer.beta2, 0.95);
  for (const char* text : {"0.9", "0.9,1", "0.9,0.99,0.999", "0.9,", "-0.1,0.9"}) {
    EXPECT_EQ(refused({format_text("--betas={}", text)}),
              format_text("--betas: expected two numbers of at least 0 and below 1, such as "
                          "0.9,0.999, found '{}'",
                          text));
  }
}

TEST(Options, ReadsBytesIntervalsLossesAndPaths) {
  EXPECT_EQ(options_of({"--memory-limit", "12GiB"}).sharding.memory_limit, int64_t{12} << 30);
  EXPECT_EQ(options_of({"--memory-limit", "1.5KB"}).sharding.memory_limit, 1500);
  EXPECT_EQ(options_of({"--memory-limit", "4096"}).sharding.memory_limit, 4096);
  EXPECT_EQ(refused({"--memory-limit", "12"}),
            "--memory-limit: expected none or bytes such as 12GiB, found '12', which is 12 bytes; "
            "did you mean 12GiB?");
  EXPECT_EQ(refused({"--memory-limit", "12Gib"}),
            "--memory-limit: expected none or bytes such as 12GiB, found '12Gib'");
  EXPECT_EQ(options_of({"--eval-interval", "20step"}).run.eval_interval,
            (Interval{20, StepUnit::kStep}));
  EXPECT_EQ(refused({"--eval-interval", "0epoch"}),
            "--eval-interval: expected Nepoch or Nstep such as 1epoch, found '0epoch'");
  EXPECT_EQ(options_of({"--loss", "output:l"}).losses[0].output, "l");
  EXPECT_EQ(refused({"--loss", "output:"}),
            "--loss: expected a name after output:, found 'output:'");
  EXPECT_EQ(options_of({"--eval-data", "none"}).run.eval_data.kind, DataChoice::Kind::kNone);
  EXPECT_EQ(options_of({"--data", "d"}).run.data.path, "d");
}

TEST(Options, RepeatedOptionsAddUp) {
  const Options options =
      options_of({"--freeze", "a.*", "--freeze", "b,c", "--no-decay", "auto", "--no-decay", "*.w"});
  EXPECT_EQ(options.freeze, (Words{"a.*", "b,c"}));
  EXPECT_TRUE(options.optimizer.no_decay_auto);
  EXPECT_EQ(options.optimizer.no_decay, Words{"*.w"});
}

TEST(Options, OptimizersHavePyTorchsDefaults) {
  const auto optimizer = [](const char* name) {
    return options_of({"--optimizer", name}).optimizer;
  };
  EXPECT_EQ(optimizer("adamw").lr, 1e-3);
  EXPECT_EQ(optimizer("adamw").weight_decay, 1e-2);
  EXPECT_EQ(optimizer("adam").weight_decay, 0);
  EXPECT_EQ(optimizer("adam").eps, 1e-8);
  EXPECT_EQ(optimizer("sgd").lr, 1e-3);
  EXPECT_EQ(optimizer("sgd").momentum, 0);
  EXPECT_EQ(optimizer("adadelta").lr, 1.0);
  EXPECT_EQ(optimizer("adadelta").eps, 1e-6);
  EXPECT_EQ(optimizer("adadelta").rho, 0.9);
  EXPECT_EQ(optimizer("adagrad").lr, 1e-2);
  EXPECT_EQ(optimizer("adagrad").eps, 1e-10);
  EXPECT_EQ(options_of({"--lr", "0.5", "--optimizer", "adadelta"}).optimizer.lr, 0.5);
}

TEST(Options, WhatHasNoEffectIsRefused) {
  EXPECT_EQ(refused({"--momentum", "0.9"}), "--momentum has no effect with --optimizer adamw");
  EXPECT_EQ(refused({"--optimizer", "sgd", "--rho", "0.9"}),
            "--rho has no effect with --optimizer sgd");
  EXPECT_EQ(refused({"--optimizer", "sgd", "--eps", "1"}),
            "--eps has no effect with --optimizer sgd");
  EXPECT_EQ(refused({"--gamma", "0.5"}), "--gamma has no effect with --lr-schedule constant");
  EXPECT_EQ(refused({"--lr-schedule", "onecycle", "--warmup-steps", "2"}),
            "--warmup-steps has no effect with --lr-schedule onecycle");
  EXPECT_EQ(refused({"--lr-schedule", "exponential"}),
            "--lr-schedule exponential needs --gamma X, found none");
  EXPECT_EQ(refused({"--lr-schedule", "multistep"}),
            "--lr-schedule multistep needs --milestones N,N,..., found none");
  EXPECT_EQ(refused({"--lr-schedule", "cosine_restarts"}),
            "--lr-schedule cosine_restarts needs --restart-steps N, found none");
  EXPECT_EQ(refused({"--loss", "mse", "--label-smoothing", "0.1"}),
            "--label-smoothing has no effect with --loss mse");
  EXPECT_EQ(refused({"--optimizer", "sgd", "--nesterov"}),
            "--nesterov needs a --momentum above 0, found 0");
  options_of({"--min-lr-ratio", "0", "--label-smoothing", "0"});  // no effect, so no refusal
  EXPECT_TRUE(
      options_of({"--optimizer", "sgd", "--momentum", "0.9", "--nesterov"}).optimizer.nesterov);
}

TEST(Options, GroupsHaveTheDefaultsOfTheirOptimizers) {
  const auto groups = [](const Words& words) { return options_of(words).optimizer.groups; };
  const auto all = groups({"--lr", "0.5", "--weight-decay", "0.1", "--momentum", "0.9", "--group",
                           "a::b=:lr=0.1x", "--group", "c:optimizer=sgd", "--group",
                           "*:weight_decay=0,optimizer=adagrad,lr=2"});
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].pattern, "a::b=");
  EXPECT_EQ(all[0].update.lr, 0.05);
  EXPECT_EQ(all[0].update.weight_decay, 0.1);
  EXPECT_EQ(all[1].update.lr, 1e-3);
  EXPECT_EQ(all[1].update.weight_decay, 0);
  EXPECT_EQ(all[1].update.momentum, 0.9);
  EXPECT_EQ(all[2].update.lr, 2);
  EXPECT_EQ(all[2].update.eps, 1e-10);
  EXPECT_EQ(refused({"--group", "a:rate=1"}),
            "--group: expected PATTERN:key=value with lr, weight_decay or optimizer, found "
            "'a:rate=1'");
  EXPECT_EQ(refused({"--group", "a:lr=fast"}),
            "--group: expected lr=X or lr=Xx (of --lr), X at least 0, found 'a:lr=fast'");
  EXPECT_EQ(refused({"--ema-use", "off"}), "--ema-use has no effect with --ema off");
}

TEST(Options, WhatPlugInsOfferIsNamedByPlugin) {
  const Options options =
      options_of({"--plugin", "a.so", "--plugin", "b.so", "--plugin-override", "--optimizer",
                  "plugin:lion", "--momentum", "0.5", "--loss", "plugin:com.example.Huber"});
  EXPECT_EQ(options.plugins, (std::vector<std::string>{"a.so", "b.so"}));
  EXPECT_TRUE(options.plugin_override);
  EXPECT_EQ(options.optimizer.kind, OptimizerKind::kPlugin);
  EXPECT_EQ(options.optimizer.plugin, "lion");
  EXPECT_EQ(options.optimizer.momentum, 0.5);
  EXPECT_EQ(options.optimizer.weight_decay, 0);
  EXPECT_EQ(options.losses[0].kind, LossKind::kOperator);
  EXPECT_EQ(options.losses[0].output, "com.example.Huber");
  EXPECT_EQ(refused({"--optimizer", "plugin:"}),
            "--optimizer: expected a name after plugin:, found 'plugin:'");
}

TEST(Options, SeveralLossesSayTheirPredictionsThemselves) {
  const std::vector<LossSpec> losses =
      options_of({"--loss", "cross_entropy:logits:0:label", "--loss", "mse:value:target*0.5"})
          .losses;
  ASSERT_EQ(losses.size(), 2u);
  EXPECT_EQ(losses[0].kind, LossKind::kCrossEntropy);
  EXPECT_EQ(losses[0].prediction, "logits:0");
  EXPECT_EQ(losses[0].labels, "label");
  EXPECT_EQ(losses[0].weight, 1);
  EXPECT_EQ(losses[1].kind, LossKind::kMse);
  EXPECT_EQ(losses[1].labels, "target");
  EXPECT_EQ(losses[1].weight, 0.5);
  EXPECT_EQ(options_of({"--loss", "mse", "--loss", "nll"}).losses[0].kind, LossKind::kNll);
  EXPECT_EQ(refused({"--loss", "mse:a:b", "--loss", "nll"}),
            "--loss: expected each of several losses as KIND:PREDICTION:LABELS[*WEIGHT], found "
            "'nll'");
  EXPECT_EQ(refused({"--loss", "contrastive:a:b:0.1", "--loss", "mse:v:t*2"}),
            "--loss: expected contrastive as the only loss, which no other joins, found "
            "'mse:v:t*2'");
  EXPECT_EQ(refused({"--loss", "mse:v:t*2", "--loss", "contrastive:a:b"}),
            "--loss: expected contrastive as the only loss, which no other joins, found "
            "'contrastive:a:b'");
  EXPECT_EQ(refused({"--loss", "mse:a"}), "--loss: expected KIND:PREDICTION:LABELS, found 'mse:a'");
  EXPECT_EQ(refused({"--loss", "mse:a:b*x"}),
            "--loss: expected KIND:PREDICTION:LABELS*WEIGHT with a number, found 'mse:a:b*x'");
  EXPECT_EQ(refused({"--loss", "mse:a:b", "--labels", "c"}),
            "--labels has no effect with --loss mse:a:b");
  EXPECT_EQ(refused({"--distill-weight", "0.3"}),
            "--distill-weight has no effect with --teacher none");
}

TEST(Options, DefaultsMayBeGiven) {
  EXPECT_EQ(refused({"--checkpoint-type", "ful"}),
            "--checkpoint-type: expected one of sharded, full, local, found 'ful'; did you mean "
            "'full'?");
  options_of({"--resume",
              "none",
              "--checkpoint-dir",
              "none",
              "--checkpoint-interval",
              "1epoch",
              "--keep-checkpoints",
              "2",
              "--checkpoint-type",
              "sharded",
              "--checkpoint-sync",
              "off",
              "--save-on-signal",
              "on",
              "--trace",
              "none",
              "--nnodes",
              "1",
              "--node-rank",
              "0",
              "--activation-checkpointing",
              "none",
              "--cpu-offload",
              "none"});
}

TEST(Options, StepsAloneGoOnWithTheNextEpoch) {
  EXPECT_FALSE(options_of({"--steps", "30"}).run.epochs);
  EXPECT_EQ(options_of({"--steps", "30", "--epochs", "2"}).run.epochs, 2);
  EXPECT_EQ(refused({"--epochs", "none"}),
            "--epochs: expected a number beside no --steps, found 'none'");
  EXPECT_EQ(refused({"--data", "synthetic"}),
            "--data synthetic is endless: expected --steps N, found none");
  EXPECT_EQ(options_of({"--data", "synthetic", "--steps", "3"}).run.data.kind,
            DataChoice::Kind::kSynthetic);
}

TEST(Options, ThreadsDefaultToTheEnvironment) {
  const auto threads = [](Words words, const char* environment) {
    return parse_command(words, environment)->options.launch.threads;
  };
  EXPECT_EQ(threads({"m.onnx"}, "4"), 4);
  EXPECT_EQ(threads({"m.onnx"}, "4,2"), 4);
  EXPECT_EQ(threads({"m.onnx"}, ""), std::nullopt);
  EXPECT_EQ(threads({"m.onnx", "--threads", "2"}, "4"), 2);
  EXPECT_EQ(threads({"m.onnx", "--threads", "auto"}, "4"), std::nullopt);
  EXPECT_EQ(parse_command({"m.onnx"}, "many").error().message(),
            "OMP_NUM_THREADS: expected a whole number of at least 1, found 'many'");
}

TEST(Options, ReadsArgv) {
  const char* argv[] = {"fsdp-run", "plan", "m.onnx", "--seed", "5"};
  const Result<ParsedCommand> parsed = parse_command_line(5, argv);
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->options.run.seed, 5u);
  EXPECT_EQ(parse_command_line(0, nullptr)->help, overview_text());
}

}  // namespace options_test
}  // namespace ofsdp
