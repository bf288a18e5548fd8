// TFLOP/s for every product in BERT-base and GPT-2 124M (forward, gradients for the data and for
// the weights, head) by the eight best algorithms from cuBLASLt's heuristic:
//
//   build/cuda/bench/products [--only TEXT] [--tokens 65536] [--minutes 9]
//                             [--epilogues bias,gelu,bgrad,dgelu,add]
//
// A line an algorithm, as it is timed: product, type, epilogue, row pitch of the vocabulary (as it
// is, or rounded up to 64 elements), place in the heuristic's list, tile, stages, splits of the
// inner axis and the way to add their parts, workspace, time, rate. Then a table of the fastest.
// Types: bfloat16, float32, and float32 rounded to TF32. With bfloat16, gradients for weights run
// twice: parts of a split sum in float32, as kernels/cuda/matmul/product.cpp requests, and in
// any type. --only: lines with it in the first three columns; --epilogues: these, and plain.
// Operands are random. Nothing begins after --minutes. Exit status 2 without a GPU.
#include <array>
#include <chrono>

#include "bench/lt_call.h"

namespace ofsdp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWidth = 768, kInner = 3072, kPitchMultiple = 64;
constexpr double kSecondsEach = 0.05;  // for an algorithm, and at least two runs

// --- the products ---

enum class Kind { kForward, kData, kWeights };  // y = x w, dx = dy w^T, dw = x^T dy

struct Layer {
  const char* name;
  int64_t in, out;
  bool bias, gelu, residual;  // nodes after it in forward
};

constexpr std::array<Layer, 6> kLayers{{
    {"gpt2 qkv", kWidth, 3 * kWidth, true, false, false},
    {"q, k, v or projection", kWidth, kWidth, true, false, true},
    {"mlp up", kWidth, kInner, true, true, false},
    {"mlp down", kInner, kWidth, true, false, true},
    {"gpt2 head", kWidth, 50257, false, false, false},
    {"bert head", kWidth, 30522, true, false, false},
}};

constexpr std::array<Type, 3> kTypes{{
    {"bfloat16", CUDA_R_16BF, CUBLAS_COMPUTE_32F, 2},
    {"TF32", CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 4},
    {"float32", CUDA_R_32F, CUBLAS_COMPUTE_32F, 4},
}};

constexpr Epilogue kPlain{"-", "", CUBLASLT_EPILOGUE_DEFAULT, false, 0};
constexpr Epilogue kBias{"bias", "bias", CUBLASLT_EPILOGUE_BIAS, false, 0};
constexpr Epilogue kAdd{"add", "add", CUBLASLT_EPILOGUE_DEFAULT, false, 1};
constexpr Epilogue kBiasAdd{"bias+add", "bias add", CUBLASLT_EPILOGUE_BIAS, false, 1};
constexpr Epilogue kGelu{"bias+gelu+aux", "bias gelu", CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, 0};
constexpr Epilogue kDGelu{"dgelu", "dgelu", CUBLASLT_EPILOGUE_DGELU, true, 0};
// dy is cuBLASLt's A.
constexpr Epilogue kBGrad{"bgrad", "bgrad", CUBLASLT_EPILOGUE_BGRADA, false, 0};

std::vector<Epilogue> epilogues_of(const Layer& l, Kind kind, const Type& type) {
  std::vector<Epilogue> list{kPlain};
  const bool narrow = type.size == 2;
  if (kind == Kind::kForward) {
    if (l.bias) list.push_back(kBias);
    if (l.residual) list.push_back(kBiasAdd);
    if (l.gelu && narrow) list.push_back(kGelu);
  } else if (kind == Kind::kData) {
    list.push_back(kAdd);
    if (l.in == kInner && narrow) list.push_back(kDGelu);
  } else {
    list.push_back(kAdd);
    if (l.bias) list.push_back(kBGrad);
  }
  return list;
}

Product product_of(const Layer& l, Kind kind, const Type& type, const Epilogue& epilogue,
                   int64_t tokens, bool padded) {
  const auto pitch = [&](int64_t columns) {
    return padded ? (columns + kPitchMultiple - 1) / kPitchMultiple * kPitchMultiple : columns;
  };
  constexpr std::array kNames{"forward", "data", "weights"};
  Product p{};
  p.name = std::string(l.name) + ", " + kNames[static_cast<size_t>(kind)];
  p.type = type;
  p.epilogue = epilogue;
  p.padded = padded;
  p.rows = kind == Kind::kWeights ? l.in : tokens;
  p.columns = kind == Kind::kData ? l.in : l.out;
  p.inner = kind == Kind::kForward ? l.in : kind == Kind::kData ? l.out : tokens;
  p.transpose_left = kind == Kind::kWeights;
  p.transpose_right = kind == Kind::kData;
  // Weights have the optimizer's layout, so only activations can have room between rows.
  p.pitch_left = kind == Kind::kData ? pitch(l.out) : l.in;
  p.pitch_right = kind == Kind::kWeights ? pitch(l.out) : l.out;
  p.pitch_result = kind == Kind::kForward ? pitch(l.out) : p.columns;
  return p;
}

// --- timing ---

class Stopwatch {
 public:
  Stopwatch() {
    check(cudaEventCreate(&began_), "cudaEventCreate");
    check(cudaEventCreate(&ended_), "cudaEventCreate");
  }
  // Seconds for a run, after one for warmth; negative if one fails.
  double seconds(const LtCall& call, const cublasLtMatmulHeuristicResult_t& algorithm) const {
    const double one = timed(call, algorithm, 1);
    if (one < 0) return one;
    const int runs = std::clamp(static_cast<int>(kSecondsEach / std::max(one, 1e-6)), 2, 50);
    return timed(call, algorithm, runs);
  }

 private:
  double timed(const LtCall& call, const cublasLtMatmulHeuristicResult_t& algorithm,
               int runs) const {
    check(cudaEventRecord(began_, nullptr), "cudaEventRecord");
    for (int i = 0; i < runs; ++i) {
      if (!call.run(algorithm)) return -1;
    }
    check(cudaEventRecord(ended_, nullptr), "cudaEventRecord");
    check(cudaEventSynchronize(ended_), "a product");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, began_, ended_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e-3 / runs;
  }

  cudaEvent_t began_ = nullptr, ended_ = nullptr;
};

struct Fastest {
  std::string title;
  int place = -1, count = 0;
  double first = 0, best = 0;  // TFLOP/s
};

Fastest measure(const Product& p, const Operands& o, const Stopwatch& watch) {
  const LtCall call(p, o);
  const auto found = call.candidates();
  Fastest fastest{p.title(), -1, static_cast<int>(found.size())};
  for (size_t i = 0; i < found.size(); ++i) {
    const auto& algo = found[i].algo;
    const double seconds = watch.seconds(call, found[i]);
    const double rate = seconds > 0 ? p.flop() / seconds * 1e-12 : 0;
    std::printf(
        "| %-34s | %-8s | %-13s | %-6s | %-7s | %zu | %4u | %3u | %3u | %-8s | %5.1f MiB | %9.4f "
        "ms "
        "| %6.1f |\n",
        p.name.c_str(), p.type.name, p.epilogue.name, p.padded ? "padded" : "raw",
        p.any_scheme ? "any" : "float32", i, config(algo, CUBLASLT_ALGO_CONFIG_TILE_ID),
        config(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID), config(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
        scheme_name(config(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)),
        static_cast<double>(found[i].workspaceSize) / (1 << 20), seconds * 1e3, rate);
    if (i == 0) fastest.first = rate;
    if (rate > fastest.best) {
      fastest.best = rate;
      fastest.place = static_cast<int>(i);
    }
  }
  if (found.empty()) std::printf("| %s: no algorithm\n", p.title().c_str());
  std::fflush(stdout);
  return fastest;
}

// --- command line ---

struct Arguments {
  std::string only, epilogues = "bias,gelu,bgrad,dgelu,add";
  int64_t tokens = 65536;
  double minutes = 9;
};

Arguments parsed(int argc, char** argv) {
  Arguments a;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--only" && !value.empty()) {
      a.only = value;
    } else if (flag == "--epilogues" && !value.empty()) {
      a.epilogues = value;
    } else if (flag == "--tokens" && std::atoll(value.c_str()) > 0) {
      a.tokens = std::atoll(value.c_str());
    } else if (flag == "--minutes" && std::atof(value.c_str()) > 0) {
      a.minutes = std::atof(value.c_str());
    } else {
      std::fprintf(stderr,
                   "products: expected --only, --epilogues, --tokens or --minutes with a value, "
                   "found %s %s\n",
                   flag.c_str(), value.c_str());
      std::exit(2);
    }
  }
  return a;
}

bool is_wanted(const Arguments& a, const Product& p) {
  const std::string listed = "," + a.epilogues + ",";
  const std::string parts = p.epilogue.parts;
  for (size_t begin = 0; begin < parts.size();) {
    const size_t end = std::min(parts.find(' ', begin), parts.size());
    if (listed.find("," + parts.substr(begin, end - begin) + ",") == std::string::npos)
      return false;
    begin = end + 1;
  }
  return p.title().find(a.only) != std::string::npos;
}

std::vector<Product> products_of(const Arguments& a, const Type& type) {
  std::vector<Product> list;
  const auto add = [&](const Product& p) {
    if (is_wanted(a, p)) list.push_back(p);
  };
  for (const Layer& layer : kLayers) {
    for (const Kind kind : {Kind::kForward, Kind::kData, Kind::kWeights}) {
      for (const Epilogue& epilogue : epilogues_of(layer, kind, type)) {
        for (const bool padded : {false, true}) {
          if (padded && layer.out % kPitchMultiple == 0) continue;
          Product p = product_of(layer, kind, type, epilogue, a.tokens, padded);
          add(p);
          p.any_scheme = type.size == 2 && kind == Kind::kWeights;
          if (p.any_scheme) add(p);
        }
      }
    }
  }
  return list;
}

int run(const Arguments& a) {
  const auto began = Clock::now();
  const auto minutes = [&] {
    return std::chrono::duration<double>(Clock::now() - began).count() / 60;
  };
  Operands operands(a.tokens);
  const Stopwatch watch;
  std::vector<Fastest> all;
  size_t left_out = 0;
  std::printf(
      "| product | type | epilogue | pitch | parts | place | tile | stages | splits | added in | "
      "workspace | time | TFLOP/s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | "
      "--- | --- | --- |\n");
  for (const Type& type : kTypes) {
    operands.fill(type.size == 2);
    for (const Product& p : products_of(a, type)) {
      if (minutes() < a.minutes) {
        all.push_back(measure(p, operands, watch));
      } else {
        ++left_out;
      }
    }
  }
  std::printf(
      "\n| product | first | fastest | its place | of |\n| --- | --- | --- | --- | --- |\n");
  for (const Fastest& f : all) {
    std::printf("| %-70s | %6.1f | %6.1f | %2d | %d |\n", f.title.c_str(), f.first, f.best, f.place,
                f.count);
  }
  std::printf("\n%zu products in %.1f minutes, %zu left out for want of time\n", all.size(),
              minutes(), left_out);
  return 0;
}

}  // namespace
}  // namespace ofsdp::bench

int main(int argc, char** argv) {
  const auto arguments = ofsdp::bench::parsed(argc, argv);
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "products: no CUDA device: %s\n", cudaGetErrorString(found));
    return 2;
  }
  if (ofsdp::kernels::cuda::lt().handle == nullptr) {
    const auto why = ofsdp::kernels::cuda::why_missing(ofsdp::kernels::cuda::Nvidia::kCublasLt);
    std::fprintf(stderr, "products: %s\n", why.c_str());
    return 2;
  }
  return ofsdp::bench::run(arguments);
}
