// One state, saved by N ranks under one strategy, loaded by M under another and saved again: the
// same bits everywhere, in memory, in both checkpoints and in files exported from them. Ranks
// are set up one after another in this process.
//
// OFSDP_RESHARD_ALL takes the large models through every pair; OFSDP_RESHARD_MODEL is one more
// model.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cmath>

#include "fsdp/checkpoint/checkpoint_store.h"
#include "kernels/base/posix_file.h"
#include "kernels/core/op_def.h"
#include "runtime/commands/commands.h"
#include "runtime/train/checkpointing.h"
#include "tests/support/data_files.h"
#include "tests/support/lone_rank.h"
#include "tests/support/namespaces.h"
#include "tests/support/onnx_bytes.h"

namespace ofsdp {
namespace checkpoint_reshard_test {

struct Model {
  std::string path;
  LossKind loss;
  int64_t min_params;
  OptimizerKind optimizer = OptimizerKind::kAdamW;
};

struct Arrangement {
  int world;
  Strategy strategy;
  WrapPolicy wrap = WrapPolicy::kSize;
  CheckpointType type = CheckpointType::kSharded;
};

// Values that only this tensor's elements have.
class Pattern {
 public:
  Pattern(const std::string& kind, const std::string& name)
      : hash_(static_cast<uint32_t>(std::hash<std::string>{}(kind + " " + name))) {}

  float operator()(int64_t element) const {
    const uint32_t mixed = (hash_ ^ static_cast<uint32_t>(element)) * 2654435761u;
    return static_cast<float>(mixed >> 8) / 16777216.0f + 0.25f;
  }

 private:
  uint32_t hash_;
};

// A rank in an arrangement, with memory.
class Rank {
 public:
  Rank(const Model& model, const Arrangement& arrangement, int rank, const std::string& dir)
      : communicator_(rank, arrangement.world) {
    options_.model = model.path;
    options_.losses[0].kind = model.loss;
    options_.optimizer.kind = model.optimizer;
    options_.optimizer.momentum = 0.9;  // for Muon
    const auto beside = std::filesystem::path(model.path).parent_path() / "data";
    if (!std::filesystem::is_directory(beside) ||
        beside.string().find("mnist") != std::string::npos)
      options_.run.data.kind = DataChoice::Kind::kSynthetic;
    options_.run.epochs.reset();
    options_.run.steps = 1;
    options_.batch.batch_size.value = 2;
    options_.sharding.strategy = arrangement.strategy;
    if (is_hybrid(arrangement.strategy)) options_.sharding.shard_size = 2;
    options_.sharding.wrap = arrangement.wrap;
    options_.sharding.min_params = model.min_params;
    options_.checkpoint.dir = dir;
    options_.checkpoint.type = arrangement.type;
    options_.checkpoint.sync = true;
    auto setup = ModelSetup::make(options_, {}, registry_, communicator_, ledger_);
    EXPECT_TRUE(setup.ok()) << setup.error().message();
    setup_ = std::make_unique<ModelSetup>(*std::move(setup));
    settings_ = resolve_settings(options_, {}, *setup_, "");
    auto plan = compile_run(settings_, *setup_, communicator_, optimizers_);
    EXPECT_TRUE(plan.ok()) << plan.error().message();
    plan_ = *std::move(plan);
  }

  void start(CheckpointReader* checkpoint) {
    auto state = RankState::make(*plan_, *setup_, communicator_, ledger_, {}, checkpoint);
    ASSERT_TRUE(state.ok()) << state.error().message();
    state_ = *std::move(state);
  }

  // Calls visit(value, the pattern's value) for every element that the rank holds.
  template <typename F>
  void each_element(F visit) {
    const auto visit_kind = [&visit](const std::string& kind) {
      return [&visit, kind](const ShardPart& part) -> Status {
        const Pattern pattern(kind, part.param.name);
        for (size_t i = 0; i < part.values.size(); ++i) {
          visit(part.values[i], pattern(part.first + static_cast<int64_t>(i)));
        }
        return {};
      };
    };
    const std::vector<std::string>& states = plan_->updates.states;
    for (const Unit& unit : plan_->shards.units) {
      EXPECT_TRUE(state_->held(unit, -1).for_each_part(visit_kind(kParameterKind)).ok());
      for (size_t k = 0; k < states.size(); ++k) {
        EXPECT_TRUE(state_->each_state(unit, static_cast<int>(k), visit_kind(states[k])).ok());
      }
    }
  }

  void save(CheckpointStore* store) {
    auto saver = Checkpointing::make(settings_, *state_, communicator_, store);
    ASSERT_TRUE(saver.ok()) << saver.error().message();
    const Status saved = (*saver)->after_update(1, std::nullopt, true, 0);
    EXPECT_TRUE(saved.ok()) << saved.message();
  }

 private:
  Registry registry_ = make_registry();
  std::vector<OptimizerDef> optimizers_ = optimizer_list();
  MemoryLedger ledger_;
  Options options_;
  LoneRank communicator_;
  std::unique_ptr<ModelSetup> setup_;
  std::unique_ptr<CompiledRun> plan_;
  RunSettings settings_;
  std::unique_ptr<RankState> state_;
};

// gcc 12 takes the pointer in a moved-from Result for the Result itself.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wfree-nonheap-object"
std::unique_ptr<CheckpointReader> reader_of(const std::string& folder) {
  auto opened = CheckpointReader::open(folder);
  OFSDP_CHECK(opened.ok(), "{}: {}", folder, opened.error().message());
  return std::make_unique<CheckpointReader>(*std::move(opened));
}
#pragma GCC diagnostic pop

// All ranks in an arrangement set up, changed by `prepare`, and saved; rank 0 last, as it commits.
template <typename F>
void save_all(const Model& model, const Arrangement& a, const std::string& dir,
              const std::string& from, F prepare) {
  auto store = CheckpointStore::open(dir, {});
  ASSERT_TRUE(store.ok()) << store.error().message();
  for (int rank = a.world - 1; rank >= 0; --rank) {
    Rank one(model, a, rank, dir);
    const auto reader = from.empty() ? nullptr : reader_of(from + "/step-00000001");
    one.start(reader.get());
    prepare(one);
    one.save(rank == 0 ? &*store : nullptr);
  }
}

std::string exported(const std::string& dir) {
  Options options;
  options.command = Command::kExport;
  options.model = dir;
  options.files.output = dir + "/exported.onnx";
  const Status status = export_checkpoint(options, make_registry());
  EXPECT_TRUE(status.ok()) << status.message();
  return onnx_bytes::content(options.files.output);
}

void expect_pattern(const std::string& dir) {
  auto reader = CheckpointReader::open(dir + "/step-00000001");
  ASSERT_TRUE(reader.ok()) << reader.error().message();
  EXPECT_TRUE(reader->verify(0, 1).ok());
  std::vector<StateTensor> tensors = saved_states(reader->manifest());
  for (const NamedTensor& tensor : reader->manifest().trained) {
    tensors.push_back({kParameterKind, tensor.name, tensor.shape});
  }
  for (const auto& [kind, name, shape] : tensors) {
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    ASSERT_TRUE(reader->read(kind, name, 0, values).ok());
    const Pattern pattern(kind, name);
    for (size_t i = 0; i < values.size(); ++i) {
      const float expected = pattern(static_cast<int64_t>(i));
      if (values[i] == expected) continue;
      FAIL() << kind << " of " << name << " at " << i << ": " << values[i] << ", expected "
             << expected;
    }
  }
}

void expect_pair(const Model& model, const Arrangement& from, const std::string& saved,
                 const std::string& expected, const Arrangement& to) {
  SCOPED_TRACE(format_text("{} {} to {} {}", from.world, strategy_name(from.strategy), to.world,
                           strategy_name(to.strategy)));
  const testing_data::TempFolder folder;
  const std::string dir = folder.path() + "/b";
  int64_t seen = 0, wrong = 0;
  save_all(model, to, dir, saved, [&](Rank& rank) {
    rank.each_element([&](float value, float expected) {
      ++seen;
      wrong += value != expected;
    });
  });
  EXPECT_GT(seen, 0);
  EXPECT_EQ(wrong, 0) << "of " << seen << " in memory";
  expect_pattern(dir);
  EXPECT_TRUE(exported(dir) == expected) << "exported files differ";
}

std::vector<Arrangement> arrangements() {
  std::vector<Arrangement> all;
  for (int world = 1; world <= 4; ++world) {
    for (const Strategy s : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard,
                             Strategy::kZero1, Strategy::kHybridShard}) {
      if (is_hybrid(s) && world != 4) continue;  // in pairs; else it equals another strategy
      const auto type = static_cast<CheckpointType>((world + static_cast<int>(s)) % 3);
      all.push_back({world, s, world % 2 == 0 ? WrapPolicy::kNone : WrapPolicy::kSize, type});
    }
  }
  return all;
}

// `stride`: tries every stride-th pair.
void expect_all_pairs(const Model& model, size_t stride) {
  const std::vector<Arrangement> all = arrangements();
  for (size_t i = 0; i < all.size(); ++i) {
    const testing_data::TempFolder folder;
    const std::string dir = folder.path() + "/a";
    save_all(model, all[i], dir, "", [](Rank& rank) {
      rank.each_element([](float& value, float expected) { value = expected; });
    });
    expect_pattern(dir);
    const std::string expected = exported(dir);
    for (size_t j = i % stride; j < all.size(); j += stride) {
      expect_pair(model, all[i], dir, expected, all[j]);
    }
    if (testing::Test::HasFailure()) return;
  }
}

size_t stride_or_all(size_t stride) {
  return std::getenv("OFSDP_RESHARD_ALL") != nullptr ? 1 : stride;
}

TEST(ReshardTest, Perceptron) {
  expect_all_pairs(
      {OFSDP_SOURCE_DIR "/tests/fixtures/mlp/model.onnx", LossKind::kCrossEntropy, 1000},
      stride_or_all(5));
}

// Factors for rows and columns, and states that only some parameters have.
TEST(ReshardTest, PerceptronOfMatrixOptimizers) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdafactor, OptimizerKind::kMuon}) {
    expect_all_pairs({OFSDP_SOURCE_DIR "/tests/fixtures/mlp/model.onnx", LossKind::kCrossEntropy,
                      1000, optimizer},
                     stride_or_all(11));
  }
}

TEST(ReshardTest, Mnist) {
  expect_all_pairs({OFSDP_SOURCE_DIR "/samples/mnist/mnist.onnx", LossKind::kNll, 100000},
                   stride_or_all(17));
}

// Counts how often a folder's files are opened.
class Opens {
 public:
  explicit Opens(const std::string& folder) : events_(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    EXPECT_GE(inotify_add_watch(events_.get(), folder.c_str(), IN_OPEN), 0) << folder;
  }

  // Returns the opens since the last call.
  int taken() {
    alignas(inotify_event) char buffer[4096];
    int count = 0;
    for (ssize_t n; (n = ::read(events_.get(), buffer, sizeof buffer)) > 0;) {
      for (const char* at = buffer; at < buffer + n;) {
        const auto* event = reinterpret_cast<const inotify_event*>(at);
        count += (event->mask & IN_ISDIR) == 0;
        at += sizeof *event + event->len;
      }
    }
    return count;
  }

 private:
  UniqueFd events_;
};

// OFSDP_RANKS: the number of ranks, for bench/many_ranks.sh; then only every n-th rank resumes.
TEST(ReshardTest, ARankOpensItsShareOfTheFiles) {
  const char* const asked = std::getenv("OFSDP_RANKS");
  const int world = asked == nullptr ? 24 : std::atoi(asked), stride = std::max(world / 64, 1);
  const Model model{OFSDP_SOURCE_DIR "/tests/fixtures/mlp/model.onnx", LossKind::kCrossEntropy,
                    1000};
  const Arrangement all{world, Strategy::kFullShard};
  const testing_data::TempFolder folder;
  save_all(model, all, folder.path(), "", [](Rank& rank) {
    rank.each_element([](float& value, float expected) { value = expected; });
  });
  const std::string saved = folder.path() + "/step-00000001";
  Opens opens(saved);
  int most = 0, seen = 0, wrong = 0;
  for (int r = 0; r < world; r += stride) {
    Rank rank(model, all, r, folder.path());
    opens.taken();
    auto reader = CheckpointReader::open(saved, r, world);
    ASSERT_TRUE(reader.ok()) << reader.error().message();
    EXPECT_TRUE(reader->verify(r, world).ok());
    rank.start(&*reader);
    most = std::max(most, opens.taken());
    rank.each_element([&](float value, float expected) {
      ++seen;
      wrong += value != expected;
    });
  }
  EXPECT_GT(seen, 0);
  EXPECT_EQ(wrong, 0) << "of " << seen;
  // The manifest, a file's size, the header, two files with checksums, two with elements.
  EXPECT_LE(most, 7);
  if (asked != nullptr) {
    fmt::print("{} ranks: a rank opens at most {} files to resume; manifest of {} bytes\n", world,
               most, std::filesystem::file_size(saved + "/manifest.json"));
  }
}

TEST(ReshardTest, OneMoreModel) {
  const char* path = std::getenv("OFSDP_RESHARD_MODEL");
  if (path == nullptr) GTEST_SKIP() << "OFSDP_RESHARD_MODEL names none";
  expect_all_pairs({path, LossKind::kCrossEntropy, 100000}, 1);
}

}  // namespace checkpoint_reshard_test
}  // namespace ofsdp
