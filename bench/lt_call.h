// A product for cuBLASLt in bench/products.cu: description, operands, and the algorithms from the
// heuristic.
//
// Row-major matrices; cuBLASLt sees their transposes, so its A is our right operand. Ownership: the
// objects own memory and descriptors. Threads: one. Errors of CUDA end the program with a line; a
// product without an algorithm has no candidates.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/matmul/lt_product.h"

namespace ofsdp::bench {

using kernels::cuda::lt;

inline constexpr int kCandidates = 8;
inline constexpr size_t kWorkspace = size_t{128} << 20;  // as in product.cpp
// Elements: the widest rows, the fewest rows in a factor, the widest rows with an aux.
inline constexpr int64_t kWidest = 50304, kNarrowest = 768, kAuxWidth = 3072;

inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "products: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

inline bool check(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; }

struct Type {
  const char* name;
  cudaDataType_t storage;
  cublasComputeType_t compute;
  size_t size;
};

struct Epilogue {
  const char* name;
  const char* parts;  // from --epilogues
  cublasLtEpilogue_t value;
  bool aux;
  float beta;
};

struct Product {
  std::string name;
  Type type;
  Epilogue epilogue;
  int64_t rows, columns, inner;
  bool transpose_left, transpose_right;
  int64_t pitch_left, pitch_right, pitch_result;
  bool padded, any_scheme;
  double flop() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
           static_cast<double>(inner);
  }
  std::string title() const {
    return name + " " + type.name + " " + epilogue.name + (padded ? " padded" : "") +
           (any_scheme ? " any scheme" : "");
  }
};

// --- memory ---

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&at_, bytes), "cudaMalloc"); }
  ~Memory() { cudaFree(at_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* at() const { return at_; }

  // Random numbers, one block repeated: constant operands let a GPU run faster.
  void fill(bool narrow) {
    constexpr size_t kBlock = size_t{4} << 20;
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 0.05f);
    std::vector<unsigned char> block(std::min(kBlock, bytes_));
    for (size_t i = 0; i + sizeof(float) <= block.size(); i += narrow ? 2 : 4) {
      uint32_t bits = 0;
      const float value = normal(random);
      std::memcpy(&bits, &value, sizeof(bits));
      if (narrow) bits >>= 16;  // bfloat16
      std::memcpy(block.data() + i, &bits, narrow ? 2 : 4);
    }
    auto* const to = static_cast<unsigned char*>(at_);
    check(cudaMemcpy(to, block.data(), block.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    for (size_t done = block.size(); done < bytes_; done *= 2) {
      check(cudaMemcpy(to + done, to, std::min(done, bytes_ - done), cudaMemcpyDeviceToDevice),
            "cudaMemcpy");
    }
  }

 private:
  void* at_ = nullptr;
  size_t bytes_;
};

struct Operands {
  Memory left, right, result, aux, vector, workspace;
  // The most that a product with these tokens needs, at four bytes each.
  explicit Operands(int64_t tokens)
      : left(most(tokens)),
        right(most(tokens)),
        result(most(tokens)),
        aux(static_cast<size_t>(tokens * kAuxWidth) * 2),
        vector(size_t{1} << 20),
        workspace(kWorkspace) {}
  void fill(bool narrow) {
    for (Memory* m : {&left, &right, &result, &aux, &vector}) m->fill(narrow);
  }

 private:
  static size_t most(int64_t tokens) {
    return static_cast<size_t>(std::max(tokens, kNarrowest) * kWidest) * 4;
  }
};

// --- cuBLASLt ---

class LtCall {
 public:
  LtCall(const Product& p, const Operands& o) : p_(p), o_(o) {
    const auto way = [](bool turned) { return turned ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const cublasOperation_t left = way(p.transpose_right), right = way(p.transpose_left);
    const void *vector = o.vector.at(), *aux = o.aux.at();
    const int64_t aux_pitch = p.columns;
    good_ = check(lt().cublasLtMatmulDescCreate_(&operation_, p.type.compute, CUDA_R_32F)) &&
            set(CUBLASLT_MATMUL_DESC_TRANSA, left) && set(CUBLASLT_MATMUL_DESC_TRANSB, right) &&
            set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue.value) &&
            (p.epilogue.value == CUBLASLT_EPILOGUE_DEFAULT ||
             set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, vector)) &&
            (!p.epilogue.aux || (set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux) &&
                                 set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_pitch)));
    const auto layout = [&](cublasLtMatrixLayout_t& made, bool turned, int64_t rows,
                            int64_t columns, int64_t pitch) {
      if (turned) std::swap(rows, columns);
      good_ = good_ && check(lt().cublasLtMatrixLayoutCreate_(&made, p.type.storage,
                                                              static_cast<uint64_t>(columns),
                                                              static_cast<uint64_t>(rows), pitch));
    };
    layout(right_, p.transpose_right, p.inner, p.columns, p.pitch_right);
    layout(left_, p.transpose_left, p.rows, p.inner, p.pitch_left);
    layout(result_, false, p.rows, p.columns, p.pitch_result);
  }
  ~LtCall() {
    for (cublasLtMatrixLayout_t layout : {left_, right_, result_}) {
      if (layout != nullptr) lt().cublasLtMatrixLayoutDestroy_(layout);
    }
    if (operation_ != nullptr) lt().cublasLtMatmulDescDestroy_(operation_);
  }
  LtCall(const LtCall&) = delete;
  LtCall& operator=(const LtCall&) = delete;

  std::vector<cublasLtMatmulHeuristicResult_t> candidates() const {
    std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
    cublasLtMatmulPreference_t preference = nullptr;
    if (!good_ || !check(lt().cublasLtMatmulPreferenceCreate_(&preference))) return {};
    lt().cublasLtMatmulPreferenceSetAttribute_(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &kWorkspace, sizeof(kWorkspace));
    constexpr uint32_t kPartsInFloat32 =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (p_.type.size == 2 && !p_.any_scheme) {
      lt().cublasLtMatmulPreferenceSetAttribute_(preference,
                                                 CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &kPartsInFloat32, sizeof(kPartsInFloat32));
    }
    int count = 0;
    const bool answered = check(lt().cublasLtMatmulAlgoGetHeuristic_(
        lt().handle, operation_, right_, left_, result_, result_, preference, kCandidates,
        found.data(), &count));
    lt().cublasLtMatmulPreferenceDestroy_(preference);
    found.resize(answered ? static_cast<size_t>(count) : 0);
    std::erase_if(found, [](const auto& f) { return f.state != CUBLAS_STATUS_SUCCESS; });
    return found;
  }

  bool run(const cublasLtMatmulHeuristicResult_t& algorithm) const {
    const float alpha = 1, beta = p_.epilogue.beta;
    return check(lt().cublasLtMatmul_(lt().handle, operation_, &alpha, o_.right.at(), right_,
                                      o_.left.at(), left_, &beta, o_.result.at(), result_,
                                      o_.result.at(), result_, &algorithm.algo, o_.workspace.at(),
                                      algorithm.workspaceSize, nullptr));
  }

 private:
  template <typename T>
  bool set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return check(
        lt().cublasLtMatmulDescSetAttribute_(operation_, attribute, &value, sizeof(value)));
  }

  const Product& p_;
  const Operands& o_;
  bool good_ = false;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, result_ = nullptr;
};

inline uint32_t config(const cublasLtMatmulAlgo_t& algorithm,
                       cublasLtMatmulAlgoConfigAttributes_t which) {
  static const auto get_config =
      kernels::cuda::function_of<decltype(cublasLtMatmulAlgoConfigGetAttribute)>(
          kernels::cuda::Nvidia::kCublasLt, "cublasLtMatmulAlgoConfigGetAttribute");
  uint32_t value = 0;
  size_t written = 0;
  if (get_config != nullptr) get_config(&algorithm, which, &value, sizeof(value), &written);
  return value;
}

inline const char* scheme_name(uint32_t scheme) {
  switch (scheme) {
    case CUBLASLT_REDUCTION_SCHEME_NONE:
      return "-";
    case CUBLASLT_REDUCTION_SCHEME_INPLACE:
      return "in place";
    case CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE:
      return "float32";
    case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE:
      return "result's";
    default:
      return "?";
  }
}

}  // namespace ofsdp::bench
