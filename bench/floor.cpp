// The least time for a model's training step on this machine with one thread: products at the rate
// of the fastest library at hand, attention's at the rate of the best product, and all
// other bytes at the rate of a copy.
//
//   build/release/bench/floor MODEL.onnx BATCH [LOSS]        LOSS: cross_entropy
//
// Prints a line for each product: our kernel's time, the fastest library's time and its name; then
// the floors. Convolutions count by their definition, with the rate of the best product; those with
// 3 x 3 taps may take less ([Note: Winograd]). These are the shortest times seen.
// A machine's speed changes within minutes. So then, for each line that it reads, it prints the
// products' floor at that moment: medians for the fastest libraries. bench/floor.sh asks for one
// before each step that it times.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <iostream>
#include <random>

#include "fsdp/comm/communicator.h"
#include "kernels/core/memory.h"
#include "kernels/core/op_def.h"
#include "kernels/core/optimizer.h"
#include "kernels/cpu/onednn/bridge.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/attention/attention_shape.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/matmul/matrix_product.h"
#include "runtime/compile/compile.h"
#include "runtime/train/setup/model_setup.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using kernels::ops::MatrixProduct;
using Clock = std::chrono::steady_clock;

// Seconds for each run in `span`, at least three runs, in rising order.
std::vector<double> times_of(const auto& run, std::chrono::milliseconds span) {
  run();
  std::vector<double> times;
  const auto end = Clock::now() + span;
  while (times.size() < 3 || Clock::now() < end) {
    const auto began = Clock::now();
    run();
    times.push_back(std::chrono::duration<double>(Clock::now() - began).count());
  }
  std::ranges::sort(times);
  return times;
}

struct Memory {
  explicit Memory(size_t bytes) : region(*Region::map(ledger, bytes, kSharing, "floor")) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    auto* values = reinterpret_cast<float*>(region.data());
    for (size_t i = 0; i < bytes / sizeof(float); ++i) values[i] = uniform(random);
  }
  static constexpr auto kSharing = Region::Sharing::kPrivate;
  MemoryLedger ledger;
  Region region;
};

int64_t matrices(const std::vector<int64_t>& batch) {
  int64_t count = 1;
  for (int64_t axis : batch) count *= axis;
  return count;
}

// One matrix by oneDNN, with A and B as given or in oneDNN's preferred layout.
std::unique_ptr<Kernel> by_onednn(const MatrixProduct& p, bool any_a, bool any_b) {
  const auto matrix = [&](int64_t rows, int64_t columns, bool turned) {
    return kernels::onednn::strided(
        p.dtype, {rows, columns},
        turned ? kernels::onednn::Dims{1, rows} : kernels::onednn::Dims{columns, 1});
  };
  const auto a = matrix(p.rows, p.inner, p.transpose_a);
  const auto b = matrix(p.inner, p.columns, p.transpose_b), y = matrix(p.rows, p.columns, false);
  const dnnl::matmul::primitive_desc made(
      kernels::onednn::engine(), any_a ? kernels::onednn::any(p.dtype, {p.rows, p.inner}) : a,
      any_b ? kernels::onednn::any(p.dtype, {p.inner, p.columns}) : b, y,
      kernels::onednn::attributes(), true);
  if (made.get(true) == nullptr) return nullptr;
  return kernels::onednn::make_kernel(
      made,
      {{DNNL_ARG_SRC, false, 0, a}, {DNNL_ARG_WEIGHTS, false, 1, b}, {DNNL_ARG_DST, true, 0, y}});
}

// A product by our kernel and by every library, on separate operands.
class Contest {
 public:
  struct Entry {
    const char* name;
    std::unique_ptr<Kernel> kernel;
    double shortest = 1e30;
  };

  explicit Contest(MatrixProduct p) {
    p.addend = MatrixProduct::Addend::kNone;
    if (p.batch_b.empty() || matrices(p.batch_b) == 1) {  // as one matrix
      if (!p.transpose_a) p.rows *= matrices(p.batch_a);
      p.batch_a = p.batch_b = {};
    }
    const size_t count = static_cast<size_t>(matrices(p.batch()));
    add("ours", kernels::ops::make_matrix_product(p));
    if (count == 1) {
      add("oneDNN", by_onednn(p, false, false));
      add("oneDNN, A reordered", by_onednn(p, true, false));
      add("oneDNN, B reordered", by_onednn(p, false, true));
      add("OpenBLAS", kernels::ops::make_blas_product(p));
    }
    const auto bytes = [&](int64_t rows, int64_t columns) {
      return align_up(count * static_cast<size_t>(rows * columns) * sizeof(float), size_t{4096});
    };
    at_b_ = bytes(p.rows, p.inner);
    at_y_ = at_b_ + bytes(p.inner, p.columns);
    at_workspace_ = at_y_ + bytes(p.rows, p.columns);
    size_t workspace = 0;
    for (const Entry& entry : entries_)
      workspace = std::max(workspace, entry.kernel->workspace_bytes());
    memory_.emplace(at_workspace_ + workspace + 64);
    // In turn, several times: a slow moment of the machine meets all of them.
    for (int round = 0; round < 5; ++round)
      for (Entry& entry : entries_) entry.shortest = std::min(entry.shortest, times(entry).front());
  }

  const Entry& ours() const { return entries_.front(); }
  const Entry& fastest() const { return *std::ranges::min_element(entries_, {}, &Entry::shortest); }
  double median_of_fastest() const {
    const std::vector<double> taken = times(fastest());
    return taken[taken.size() / 2];
  }

 private:
  void add(const char* name, std::unique_ptr<Kernel> kernel) {
    if (kernel != nullptr) entries_.push_back({name, std::move(kernel)});
  }

  std::vector<double> times(const Entry& entry) const {
    std::byte* const base = memory_->region.data();
    const std::array<TensorView, 2> inputs = {TensorView{base, {}}, TensorView{base + at_b_, {}}};
    const TensorView output{base + at_y_, {}};
    return times_of(
        [&] {
          const Status ran =
              entry.kernel->run({inputs, {&output, 1}, base + at_workspace_, nullptr});
          OFSDP_CHECK(ran.ok());
        },
        std::chrono::milliseconds(60));
  }

  std::vector<Entry> entries_;
  size_t at_b_ = 0, at_y_ = 0, at_workspace_ = 0;
  std::optional<Memory> memory_;
};

double copy_rate() {  // bytes read and written
  constexpr size_t kBytes = size_t{256} << 20;
  const Memory memory(2 * kBytes);
  std::byte* const base = memory.region.data();
  return 2.0 * kBytes /
         times_of([&] { std::memcpy(base + kBytes, base, kBytes); }, std::chrono::milliseconds(500))
             .front();
}

std::optional<MatrixProduct> product_of(const Node& node, const Problem& p) {
  const std::string op = node.op->full_name();
  if (op == "Gemm" || op == "ofsdp.KeptRowsGemm")
    return kernels::ops::gemm_product(p.attributes, p.in(0), p.out(0));
  if (op == "MatMul" || op == "ofsdp.MatMul" || op == "com.microsoft.FusedMatMul")
    return kernels::ops::matmul_product(p.attributes, p.in(0), p.in(1));
  return {};
}

double flops_of(const MatrixProduct& p) {
  return 2.0 * static_cast<double>(matrices(p.batch())) * static_cast<double>(p.rows) *
         static_cast<double>(p.inner) * static_cast<double>(p.columns);
}

double convolution_flops(const Node& node, const Problem& p) {
  const std::string op = node.op->full_name();
  kernels::ops::ConvShape s;
  if (op == "Conv") {
    s = kernels::ops::known_conv(p.attributes, p.in(0).shape, p.in(1).shape);
  } else if (op == "ofsdp.ConvGradInput" || op == "ofsdp.ConvGradWeights") {
    s = kernels::ops::known_conv(p.attributes, Shape(p.attributes.ints("x_shape")),
                                 Shape(p.attributes.ints("w_shape")));
  } else {
    return 0;
  }
  return 2.0 * static_cast<double>(s.y.numel()) * static_cast<double>(s.w.numel() / s.w[0]);
}

// Counts the two products in attention, or the five in the gradient.
double attention_flops(const Node& node, const Problem& p) {
  const std::string op = node.op->full_name();
  const bool gradient = op == "ofsdp.AttentionGrad";
  if (!gradient && op != "Attention") return 0;
  const auto operand = [&](size_t i) {
    const size_t at = i + (gradient ? 1 : 0);
    return p.has_in(at) ? p.in(at) : TensorDesc{};
  };
  const auto s =
      kernels::ops::attention_shape({operand(0), operand(1), operand(2), operand(3)}, p.attributes);
  const auto keys = static_cast<double>(s.keys);
  const double seen = s.causal && s.queries == s.keys ? (keys + 1) / 2 : keys;
  const int64_t widths = gradient ? 3 * s.width + 2 * s.v_width : s.width + s.v_width;
  return 2.0 * static_cast<double>(s.batch * s.heads * s.queries * widths) * seen;
}

Status report(const std::string& model, int64_t batch, const std::string& loss) {
  Options options;
  options.model = model;
  options.losses[0].kind = loss == "auto"  ? LossKind::kAuto
                           : loss == "mse" ? LossKind::kMse
                                           : LossKind::kCrossEntropy;
  options.run.data.kind = DataChoice::Kind::kSynthetic;
  options.run.epochs.reset();
  options.run.steps = 1;
  options.batch.batch_size.value = batch;
  const Registry registry = make_registry();
  const auto communicator = make_self_communicator();
  const auto optimizers = optimizer_list();
  MemoryLedger ledger;
  OFSDP_ASSIGN_OR_RETURN(const auto setup,
                         runtime::ModelSetup::make(options, {}, registry, *communicator, ledger));
  const auto settings = runtime::resolve_settings(options, {}, setup, "");
  OFSDP_ASSIGN_OR_RETURN(const auto plan,
                         runtime::compile_run(settings, setup, *communicator, optimizers));
  const auto& program = std::ranges::max_element(plan->programs, {}, [](const auto& entry) {
                          return entry.second.memory.arena_bytes;
                        })->second;

  struct Uses {
    MatrixProduct product;
    int count = 0;
  };
  std::map<std::string, Uses> products;
  double convolutions = 0, attention = 0, bytes = 0;
  for (const Node& node : program.graph.nodes) {
    if (node.op->view) continue;
    const Problem p = runtime::problem_of(program.graph, node);
    if (const auto product = product_of(node, p)) {
      const auto axes = joined(product->batch_a, "x") + "|" + joined(product->batch_b, "x");
      const std::string key =
          format_text("{}{}{} x {} x {}{}", axes == "|" ? "" : axes + " of ", product->rows,
                      product->transpose_a ? "^T" : "", product->inner, product->columns,
                      product->transpose_b ? "^T" : "");
      auto& uses = products[key];
      uses.product = *product;
      ++uses.count;
      continue;
    }
    const double flops = convolution_flops(node, p);
    convolutions += flops;
    attention += attention_flops(node, p);
    for (const auto* list : {&p.inputs, &p.outputs})
      for (const TensorDesc& desc : *list)
        bytes += flops > 0 ? 0.0 : static_cast<double>(desc.bytes());
  }

  double ours = 0, best = 0, peak = 0;
  std::printf("%-44s %5s %9s %9s %6s  %s\n", "product: rows x inner x columns", "uses", "ours ms",
              "best ms", "ratio", "fastest");
  std::deque<std::pair<int, Contest>> contests;
  for (const auto& [key, uses] : products) {
    const Contest& c = contests.emplace_back(uses.count, uses.product).second;
    const double mine = c.ours().shortest, shortest = c.fastest().shortest;
    peak = std::max(peak, flops_of(uses.product) / shortest);
    ours += uses.count * mine;
    best += uses.count * shortest;
    std::printf("%-44s %5d %9.3f %9.3f %6.2f  %s\n", key.c_str(), uses.count, mine * 1e3,
                shortest * 1e3, mine / shortest, c.fastest().name);
  }
  const double rate = copy_rate();
  int64_t numel = 0;
  for (const auto& unit : plan->shards.units) numel += unit.numel;
  constexpr double kUpdateBytes = 7 * sizeof(float);  // AdamW reads 4 numbers and writes 3
  const double update = static_cast<double>(numel) * kUpdateBytes;
  std::printf("best rate of a product %.1f GFLOP/s, copy rate %.1f GB/s\n", peak * 1e-9,
              rate * 1e-9);
  std::printf("products: ours %.1f ms, floor %.1f ms; convolutions at the best rate %.1f ms\n",
              ours * 1e3, best * 1e3, peak > 0 ? convolutions / peak * 1e3 : 0.0);
  std::printf("other bytes: %.1f MB, %.1f ms; update %.1f MB, %.1f ms\n", bytes * 1e-6,
              bytes / rate * 1e3, update * 1e-6, update / rate * 1e3);
  std::printf(
      "floor of products %.1f ms, floor of bytes %.1f ms, of attention's products %.1f ms\n",
      (best + (peak > 0 ? convolutions / peak : 0)) * 1e3, (bytes + update) / rate * 1e3,
      peak > 0 ? attention / peak * 1e3 : 0.0);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    double now = peak > 0 ? convolutions / peak : 0;
    for (const auto& [count, contest] : contests) now += count * contest.median_of_fastest();
    std::printf("floor of products now %.1f ms\n", now * 1e3);
    std::fflush(stdout);
  }
  return {};
}

}  // namespace
}  // namespace ofsdp

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: floor MODEL.onnx BATCH [cross_entropy | mse | auto]\n");
    return 2;
  }
  ofsdp::kernels::set_pool_threads(1);
  const auto status = ofsdp::report(argv[1], std::strtoll(argv[2], nullptr, 10),
                                    argc > 3 ? argv[3] : "cross_entropy");
  if (!status.ok()) std::fprintf(stderr, "floor: %s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
