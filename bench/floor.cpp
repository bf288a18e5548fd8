// The least that a training step of a model can take on this machine with one thread: its products
// at the rate of the fastest library at hand, and all other bytes at the rate of a copy.
//
//   build/release/bench/floor MODEL.onnx BATCH [LOSS]        LOSS: cross_entropy
//
// Prints a line for each product: what our kernel takes, what the fastest library takes, which one
// that is; then the floors. Convolutions count with the rate of the best product. bench/floor.sh
// times the step itself.
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>

#include "fsdp/comm/communicator.h"
#include "kernels/core/memory.h"
#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "kernels/cpu/onednn/bridge.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/conv/conv_shape.h"
#include "kernels/ops/matmul/blas_product.h"
#include "runtime/plan/model_setup.h"
#include "runtime/plan/run_plan.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

using kernels::ops::MatrixProduct;
using Clock = std::chrono::steady_clock;

// The fastest of some runs in `span`.
double seconds_of(const auto& run, std::chrono::milliseconds span) {
  run();
  double best = 1e30;
  const auto end = Clock::now() + span;
  for (int i = 0; i < 3 || Clock::now() < end; ++i) {
    const auto began = Clock::now();
    run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - began).count());
  }
  return best;
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

struct Rates {
  double ours = 1e30, best = 1e30;
  const char* library = "";
};

// One matrix by oneDNN, with A and B as they are or as it likes them best.
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

Rates rates_of(MatrixProduct p) {
  p.addend = MatrixProduct::Addend::kNone;
  if (p.batch_b.empty() || matrices(p.batch_b) == 1) {  // as one matrix
    if (!p.transpose_a) p.rows *= matrices(p.batch_a);
    p.batch_a = p.batch_b = {};
  }
  const size_t count = static_cast<size_t>(matrices(p.batch()));
  const auto bytes = [&](int64_t rows, int64_t columns) {
    return align_up(count * static_cast<size_t>(rows * columns) * sizeof(float), size_t{4096});
  };
  const size_t at_b = bytes(p.rows, p.inner), at_y = at_b + bytes(p.inner, p.columns);
  const auto kernel = kernels::ops::make_matrix_product(p);
  std::vector<std::pair<const char*, std::unique_ptr<Kernel>>> others;
  if (count == 1) {
    others.emplace_back("oneDNN", by_onednn(p, false, false));
    others.emplace_back("oneDNN, A reordered", by_onednn(p, true, false));
    others.emplace_back("oneDNN, B reordered", by_onednn(p, false, true));
    others.emplace_back("OpenBLAS", kernels::ops::make_blas_product(p));
  }
  size_t workspace = kernel->workspace_bytes();
  for (const auto& [name, other] : others)
    if (other != nullptr) workspace = std::max(workspace, other->workspace_bytes());
  const size_t at_workspace = at_y + bytes(p.rows, p.columns);
  const Memory memory(at_workspace + workspace + 64);
  std::byte* const base = memory.region.data();
  const std::array<TensorView, 2> inputs = {TensorView{base, {}}, TensorView{base + at_b, {}}};
  const TensorView output{base + at_y, {}};
  const auto time = [&](Kernel& k) {
    const auto run = [&] {
      OFSDP_CHECK(k.run({inputs, {&output, 1}, base + at_workspace, nullptr}).ok());
    };
    return seconds_of(run, std::chrono::milliseconds(60));
  };
  // In turn, several times: a slow moment of the machine meets all of them.
  Rates rates;
  for (int round = 0; round < 5; ++round) {
    rates.ours = std::min(rates.ours, time(*kernel));
    for (const auto& [name, other] : others) {
      const double seconds = other == nullptr ? 1e30 : time(*other);
      if (seconds < rates.best) std::tie(rates.best, rates.library) = std::pair{seconds, name};
    }
  }
  if (rates.ours <= rates.best) std::tie(rates.best, rates.library) = std::pair{rates.ours, "ours"};
  return rates;
}

double copy_rate() {  // bytes read and written
  constexpr size_t kBytes = size_t{256} << 20;
  const Memory memory(2 * kBytes);
  std::byte* const base = memory.region.data();
  return 2.0 * kBytes /
         seconds_of([&] { std::memcpy(base + kBytes, base, kBytes); },
                    std::chrono::milliseconds(500));
}

std::optional<MatrixProduct> product_of(const Node& node, const Problem& p) {
  const std::string op = node.op->full_name();
  if (op == "Gemm") return kernels::ops::gemm_product(p.attributes, p.in(0), p.out(0));
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

Status report(const std::string& model, int64_t batch, const std::string& loss) {
  Options options;
  options.model = model;
  options.loss.kind = loss == "auto"  ? LossKind::kAuto
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
                         runtime::RunPlan::make(settings, setup, *communicator, optimizers));
  const auto& program = std::ranges::max_element(plan->programs, {}, [](const auto& entry) {
                          return entry.second.memory.arena_bytes;
                        })->second;

  struct Uses {
    MatrixProduct product;
    int count = 0;
  };
  std::map<std::string, Uses> products;
  double convolutions = 0, bytes = 0;
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
    for (const auto* list : {&p.inputs, &p.outputs})
      for (const TensorDesc& desc : *list)
        bytes += flops > 0 ? 0.0 : static_cast<double>(desc.bytes());
  }

  double ours = 0, best = 0, peak = 0;
  std::printf("%-44s %5s %9s %9s %6s  %s\n", "product: rows x inner x columns", "uses", "ours ms",
              "best ms", "ratio", "fastest");
  for (const auto& [key, uses] : products) {
    const Rates r = rates_of(uses.product);
    peak = std::max(peak, flops_of(uses.product) / r.best);
    ours += uses.count * r.ours;
    best += uses.count * r.best;
    std::printf("%-44s %5d %9.3f %9.3f %6.2f  %s\n", key.c_str(), uses.count, r.ours * 1e3,
                r.best * 1e3, r.ours / r.best, r.library);
  }
  const double rate = copy_rate();
  int64_t numel = 0;
  for (const auto& unit : plan->plan.units) numel += unit.numel;
  constexpr double kUpdateBytes = 7 * sizeof(float);  // AdamW reads 4 numbers and writes 3
  const double update = static_cast<double>(numel) * kUpdateBytes;
  std::printf("best rate of a product %.1f GFLOP/s, copy rate %.1f GB/s\n", peak * 1e-9,
              rate * 1e-9);
  std::printf("products: ours %.1f ms, floor %.1f ms; convolutions at the best rate %.1f ms\n",
              ours * 1e3, best * 1e3, peak > 0 ? convolutions / peak * 1e3 : 0.0);
  std::printf("other bytes: %.1f MB, %.1f ms; update %.1f MB, %.1f ms\n", bytes * 1e-6,
              bytes / rate * 1e3, update * 1e-6, update / rate * 1e3);
  std::printf("floor of products %.1f ms, floor of bytes %.1f ms\n",
              (best + (peak > 0 ? convolutions / peak : 0)) * 1e3, (bytes + update) / rate * 1e3);
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
