// The tables of docs/internals/memory.md: each figure is planned anew and compared with the page,
// and with the arithmetic that the page states, both within three hundredths.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>

#include "tests/support/namespaces.h"
#include "tests/support/planner.h"
#include "tests/support/shaped_decoder.h"

namespace ofsdp {
namespace memory_page_test {

constexpr double kNear = 0.03;

// Shapes as in the papers. Rows and columns of weights decide; biases of products are left out (a
// ten-thousandth).
const DecoderShape kTwelve{.layers = 36,
                           .width = 2560,
                           .heads = 32,
                           .kv_heads = 32,
                           .hidden = 10240,
                           .vocabulary = 32000,
                           .sequence = 128};
const DecoderShape kZero{.layers = 36,
                         .width = 4096,
                         .heads = 32,
                         .kv_heads = 32,
                         .hidden = 16384,
                         .vocabulary = 30528,
                         .sequence = 1024};
const DecoderShape kGpt3{.layers = 96,
                         .width = 12288,
                         .heads = 96,
                         .kv_heads = 96,
                         .hidden = 49152,
                         .vocabulary = 50257,
                         .sequence = 2048,
                         .tied = true,
                         .positions = true};
DecoderShape llama(int64_t layers, int64_t width, int64_t heads, int64_t kv, int64_t hidden,
                   int64_t vocabulary) {
  return {layers, width, heads, kv, hidden, vocabulary, 2048, true};
}

constexpr Strategy kStrategies[] = {Strategy::kNoShard, Strategy::kZero1, Strategy::kShardGradOp,
                                    Strategy::kFullShard};

// Cells of the page's tables by the first two columns: "| full_shard | 4 | 9.27 | ...".
class Page {
 public:
  Page() {
    std::ifstream file(OFSDP_SOURCE_DIR "/docs/internals/memory.md");
    for (std::string line; std::getline(file, line);) {
      if (line.starts_with("| ")) add(line);
    }
  }

  // Returns the numbers after the first two cells; empty without such a row.
  std::vector<double> row(const std::string& first, const std::string& second) const {
    const auto it = rows_.find({first, second});
    return it == rows_.end() ? std::vector<double>() : it->second;
  }

 private:
  void add(const std::string& line) {
    std::vector<std::string> cells;
    for (size_t at = 2; at < line.size();) {
      const size_t end = line.find(" |", at);
      if (end == std::string::npos) break;
      cells.push_back(line.substr(at, end - at));
      at = end + 3;
    }
    if (cells.size() < 3) return;
    std::vector<double>& numbers = rows_[{cells[0], cells[1]}];
    for (size_t i = 2; i < cells.size(); ++i) numbers.push_back(std::atof(cells[i].c_str()));
  }

  std::map<std::pair<std::string, std::string>, std::vector<double>> rows_;
};

// Prints the row, so a page can be made from a failing test's output.
void expect_row(const Page& page, const std::string& first, const std::string& second,
                const std::vector<double>& numbers) {
  std::string line = format_text("| {} | {}", first, second);
  for (const double number : numbers) line += format_text(" | {:.2f}", number);
  const std::vector<double> there = page.row(first, second);
  ASSERT_EQ(there.size(), numbers.size()) << "expected the row\n" << line << " |";
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_NEAR(there[i], numbers[i], std::max(kNear * numbers[i], 0.006)) << line << " |";
  }
}

struct Bytes {
  double peak = 0, parameters = 0, states = 0, gradients = 0, gathered = 0, activations = 0;
};

// In 1e9 bytes, for a rank on a GPU that is not here.
Bytes planned(const ShapedDecoder& model, int world, const ShardingOptions& sharding) {
  Options options = plan_options(model.path(), LossKind::kCrossEntropy, 1);
  options.launch.device = DeviceChoice::kCuda;
  options.sharding = sharding;
  Planner planner(options, world, "", 1);
  const auto plan = planner.compile(sharding);
  const MemoryMap& m = plan->memory;
  const auto& largest = std::ranges::max_element(plan->programs, {}, [](const auto& program) {
                          return program.second.memory.arena_bytes;
                        })->second.memory;
  const auto gigabytes = [](size_t bytes) { return static_cast<double>(bytes) * 1e-9; };
  return {gigabytes(m.planned_bytes()),     gigabytes(m.parameter_bytes),
          gigabytes(m.optimizer_bytes),     gigabytes(m.gradient_bytes),
          gigabytes(largest.peak_gathered), gigabytes(largest.peak_activations)};
}

ShardingOptions with(Strategy strategy, DType dtype = DType::kFloat32) {
  ShardingOptions sharding;
  sharding.strategy = strategy;
  sharding.param_dtype = sharding.reduce_dtype = dtype;
  return sharding;
}

// Bytes per parameter and rank in float32 that stay: the parameter, the gradient where gradients
// are whole, and two moments.
double resting(Strategy strategy, int world) {
  if (strategy == Strategy::kNoShard) return 16;
  if (strategy == Strategy::kZero1) return 8 + 8.0 / world;
  return 12.0 / world;
}

TEST(MemoryPage, TwelveGigabytesUnderEveryStrategy) {
  const Page page;
  const ShapedDecoder model(kTwelve);
  EXPECT_NEAR(static_cast<double>(model.parameters()) * 4e-9, 12, 12 * kNear);
  for (const Strategy strategy : kStrategies) {
    for (const int world : {1, 2, 4, 8}) {
      const Bytes b = planned(model, world, with(strategy));
      expect_row(page, std::string(strategy_name(strategy)), std::to_string(world),
                 {b.peak, b.parameters + b.states, b.gathered, b.gradients, b.activations});
      const double whole = static_cast<double>(model.parameters()) * 1e-9;
      const bool keeps = strategy == Strategy::kNoShard || strategy == Strategy::kZero1;
      const double arithmetic = whole * resting(strategy, world);
      const double counted = b.parameters + b.states + (keeps ? b.gradients : 0);
      if (world == 1) continue;  // reductions are copies then, and units return their slots
      EXPECT_NEAR(counted, arithmetic, kNear * arithmetic) << world;
    }
  }
}

// Rajbhandari et al. 2020, table 1: 120, 31.4, 16.6 and 1.9 GB.
TEST(MemoryPage, ZerosTableBesideOurs) {
  const Page page;
  const ShapedDecoder model(kZero);
  const double whole = static_cast<double>(model.parameters()) * 1e-9;
  EXPECT_NEAR(whole, 7.5, 7.5 * kNear);
  const std::map<Strategy, double> published{{Strategy::kNoShard, 120},
                                             {Strategy::kZero1, 31.4},
                                             {Strategy::kShardGradOp, 16.6},
                                             {Strategy::kFullShard, 1.9}};
  for (const Strategy strategy : kStrategies) {
    const Bytes b = planned(model, 64, with(strategy, DType::kBFloat16));
    const double rests = b.parameters + b.states;
    expect_row(page, format_text("{}, 7.5B", strategy_name(strategy)), "64",
               {published.at(strategy), b.peak - b.activations, rests, b.gathered, b.gradients});
    const double zero = published.at(strategy);
    const double shard = 2 * whole / 64;  // 16-bit values
    double compared = 0;
    if (strategy == Strategy::kNoShard || strategy == Strategy::kZero1) {
      compared = rests + b.gradients - 2 * whole;  // ours are float32
    } else if (strategy == Strategy::kShardGradOp) {
      compared = rests + b.gathered + shard;  // ours has no gradient shard
    } else {
      compared = rests + 2 * shard;  // nor 16-bit parameters
    }
    EXPECT_NEAR(compared, zero, kNear * zero) << strategy_name(strategy);
  }
}

// Returns the least number of cards, a power of two, that gives each rank at most 80 GB. Each rank
// needs `shared` GB divided by the number.
std::pair<int, Bytes> least_cards(const ShapedDecoder& model, const ShardingOptions& sharding,
                                  double shared) {
  int first = 1;
  while (first * 80 < shared) first *= 2;
  for (int world = first; world <= 1024; world *= 2) {
    const Bytes b = planned(model, world, sharding);
    if (b.peak <= 80) return {world, b};
  }
  return {0, {}};
}

TEST(MemoryPage, CardsForLargeModels) {
  const Page page;
  const std::vector<std::pair<std::string, DecoderShape>> models = {
      {"Llama 7B", llama(32, 4096, 32, 32, 11008, 32000)},
      {"Llama 3 8B", llama(32, 4096, 32, 8, 14336, 128256)},
      {"Llama 13B", llama(40, 5120, 40, 40, 13824, 32000)},
      {"Llama 2 70B", llama(80, 8192, 64, 8, 28672, 32000)},
      {"GPT-3 175B", kGpt3},
      {"Llama 3 405B", llama(126, 16384, 128, 8, 53248, 128256)}};
  for (const auto& [name, shape] : models) {
    const ShapedDecoder model(shape);
    const double whole = static_cast<double>(model.parameters()) * 1e-9;
    ShardingOptions sharding = with(Strategy::kFullShard, DType::kBFloat16);
    sharding.activation_checkpointing = Recompute::kUnit;
    const auto [cards, b] = least_cards(model, sharding, 12 * whole);
    sharding.cpu_offload = CpuOffload::kParams;
    const auto [offloaded, o] = least_cards(model, sharding, 0);
    expect_row(page, name, format_text("{:.1f}", whole),
               {16 * whole, static_cast<double>(cards), b.peak, b.parameters + b.states,
                b.gathered + b.gradients + b.activations, static_cast<double>(offloaded), o.peak});
    ASSERT_GT(cards, 0);
    const double arithmetic = 12 * whole / cards;
    EXPECT_NEAR(b.parameters + b.states, arithmetic, kNear * arithmetic) << name;
  }
}

}  // namespace memory_page_test
}  // namespace ofsdp
