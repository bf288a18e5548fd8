#include "kernels/cuda/matmul/lt_product.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "kernels/cuda/device/implementations.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr size_t kMaxWorkspace = size_t{128} << 20;  // 13 float32 partials of a 768 x 3072 gradient
constexpr uint32_t kMinOfVectors = 16;               // some cards add the bias wrongly below it
constexpr int kCandidates = 8;
// A made-up address for the bias and aux pointers: the heuristic reads only its alignment.
constexpr uintptr_t kSomewhere = uintptr_t{1} << 20;

cudaDataType_t type_of(DType dtype) {
  if (dtype == DType::kFloat16) return CUDA_R_16F;
  return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

cublasComputeType_t compute_type(const ProductShape& s) {
  return s.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

// Our A is cuBLASLt's B, so BGRADB sums it.
cublasLtEpilogue_t epilogue_of(const ProductShape& s) {
  if (s.bias_grad == BiasGrad::kOfA) return CUBLASLT_EPILOGUE_BGRADB;
  if (s.bias_grad == BiasGrad::kOfB) return CUBLASLT_EPILOGUE_BGRADA;
  if (s.activation == Activation::kGeluGrad) {
    return s.bias_grad == BiasGrad::kOfD ? CUBLASLT_EPILOGUE_DGELU_BGRAD : CUBLASLT_EPILOGUE_DGELU;
  }
  if (s.activation == Activation::kGelu) {
    if (s.aux) return s.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return s.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  }
  return s.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

class LtProduct final : public MatrixProduct {
 public:
  ~LtProduct() override {
    for (cublasLtMatrixLayout_t layout : {left_, right_, result_}) {
      if (layout != nullptr) lt().cublasLtMatrixLayoutDestroy_(layout);
    }
    if (operation_ != nullptr) lt().cublasLtMatmulDescDestroy_(operation_);
  }

  bool settle(DeviceState& device, const ProductShape& shape) {
    shape_ = shape;
    return describe() && choose(device);
  }

  size_t workspace_bytes() const override { return chosen_.workspaceSize; }

  cudaError_t run(cudaStream_t stream, const ProductOperands& o) override {
    if (!point_to(o)) return cudaErrorInvalidValue;
    return matmul(chosen_.algo, stream, o, chosen_.workspaceSize) ? cudaSuccess
                                                                  : cudaErrorLaunchFailure;
  }

 private:
  bool set(cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes) {
    return lt().cublasLtMatmulDescSetAttribute_(operation_, attribute, value, bytes) ==
           CUBLAS_STATUS_SUCCESS;
  }

  // The bias and its gradient share one attribute; no epilogue has both.
  bool point_to(const ProductOperands& o) {
    const void* vector = shape_.bias ? o.bias : o.bias_grad;
    const bool has_vector = shape_.bias || shape_.bias_grad != BiasGrad::kNone;
    return (!has_vector || set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof(vector))) &&
           (!shape_.aux || set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o.aux, sizeof(o.aux)));
  }

  bool matmul(const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream, const ProductOperands& o,
              size_t bytes) {
    const void* c = o.c != nullptr ? o.c : o.d;
    return lt().cublasLtMatmul_(lt().handle, operation_, &shape_.alpha, o.b, left_, o.a, right_,
                                &shape_.beta, c, result_, o.d, result_, &algorithm, o.workspace,
                                bytes, stream) == CUBLAS_STATUS_SUCCESS;
  }

  // A row-major [rows, columns] with pitch `row` is a column-major [columns, rows] with leading
  // dimension `row`.
  bool layout(cublasLtMatrixLayout_t& made, DType dtype, int64_t rows, int64_t columns, int64_t row,
              int64_t stride) {
    if (lt().cublasLtMatrixLayoutCreate_(&made, type_of(dtype), static_cast<uint64_t>(columns),
                                         static_cast<uint64_t>(rows),
                                         row) != CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    const auto count = static_cast<int32_t>(shape_.batch);
    const auto put = [&](cublasLtMatrixLayoutAttribute_t attribute, const auto& value) {
      return lt().cublasLtMatrixLayoutSetAttribute_(made, attribute, &value, sizeof(value)) ==
             CUBLAS_STATUS_SUCCESS;
    };
    return shape_.batch == 1 || (put(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, count) &&
                                 put(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride));
  }

  bool describe() {
    const ProductShape& s = shape_;
    if (lt().cublasLtMatmulDescCreate_(&operation_, compute_type(s), CUDA_R_32F) !=
        CUBLAS_STATUS_SUCCESS) {
      return false;
    }
    const auto way = [](bool t) { return t ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const cublasOperation_t left = way(s.transpose_b), right = way(s.transpose_a);
    const auto layout_of = [&](cublasLtMatrixLayout_t& made, bool transposed, int64_t rows,
                               int64_t columns, int64_t row, int64_t stride) {
      return transposed ? layout(made, s.dtype, columns, rows, row, stride)
                        : layout(made, s.dtype, rows, columns, row, stride);
    };
    return set(CUBLASLT_MATMUL_DESC_TRANSA, &left, sizeof(left)) &&
           set(CUBLASLT_MATMUL_DESC_TRANSB, &right, sizeof(right)) && describe_epilogue() &&
           layout_of(left_, s.transpose_b, s.inner, s.columns, s.row_b(), s.stride_b) &&
           layout_of(right_, s.transpose_a, s.rows, s.inner, s.row_a(), s.stride_a) &&
           layout(result_, s.result(), s.rows, s.columns, s.row_d(), s.stride_d);
  }

  bool describe_epilogue() {
    const cublasLtEpilogue_t epilogue = epilogue_of(shape_);
    void* const somewhere =
        reinterpret_cast<void*>(kSomewhere + std::max(shape_.alignment, kMinOfVectors));
    return set(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)) &&
           (!shape_.aux ||
            set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &shape_.columns, sizeof(shape_.columns))) &&
           point_to({.bias = somewhere, .aux = somewhere, .bias_grad = somewhere});
  }

  // Caches the choice by shape, so equal products run the same algorithm and give the same bits.
  bool choose(DeviceState& device) {
    static std::mutex mutex;
    using Key = std::tuple<int, bool, ProductShape>;
    static std::map<Key, cublasLtMatmulHeuristicResult_t> known;
    const std::scoped_lock lock(mutex);
    const Key key{device.ordinal, device.may_vary, shape_};
    if (const auto it = known.find(key); it != known.end()) {
      chosen_ = it->second;
      return true;
    }
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    const int count = ask_heuristic(found);
    if (count == 0) return false;
    // Ranks may choose different algorithms but must plan the same workspace.
    size_t workspace = 0;
    for (int i = 0; i < count; ++i) {
      workspace = std::max(workspace, found[static_cast<size_t>(i)].workspaceSize);
    }
    const auto run = [&](int i, const ProductOperands& operands) {
      const auto& candidate = found[static_cast<size_t>(i)];
      return point_to(operands) &&
             matmul(candidate.algo, nullptr, operands, candidate.workspaceSize);
    };
    chosen_ = found[static_cast<size_t>(
        fastest_candidate(shape_, count, device.may_vary, workspace, run))];
    chosen_.workspaceSize = workspace;
    known.emplace(key, chosen_);
    return true;
  }

  // Stores the heuristic's algorithms in `found`, best first, and returns their count. A split-K
  // algorithm may add its partials in the result's dtype unless the mask asks for float32.
  int ask_heuristic(std::array<cublasLtMatmulHeuristicResult_t, kCandidates>& found) {
    int count = 0;
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt().cublasLtMatmulPreferenceCreate_(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      lt().cublasLtMatmulPreferenceSetAttribute_(preference, attribute, &value, sizeof(value));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspace);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      prefer(attribute, shape_.alignment);
    }
    constexpr uint32_t kPartsInFloat32 =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (shape_.dtype != DType::kFloat32) {
      prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kPartsInFloat32);
    }
    const cublasStatus_t status = lt().cublasLtMatmulAlgoGetHeuristic_(
        lt().handle, operation_, left_, right_, result_, result_, preference, kCandidates,
        found.data(), &count);
    lt().cublasLtMatmulPreferenceDestroy_(preference);
    if (status != CUBLAS_STATUS_SUCCESS) return 0;
    const auto end = std::remove_if(found.begin(), found.begin() + count, [](const auto& answer) {
      return answer.state != CUBLAS_STATUS_SUCCESS;
    });
    return static_cast<int>(end - found.begin());
  }

  ProductShape shape_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t left_ = nullptr, right_ = nullptr, result_ = nullptr;
  cublasLtMatmulHeuristicResult_t chosen_{};
};

}  // namespace

std::unique_ptr<MatrixProduct> make_lt_product(DeviceState& device, const ProductShape& shape) {
  auto product = std::make_unique<LtProduct>();
  if (!product->settle(device, shape)) return nullptr;
  return product;
}

}  // namespace ofsdp::kernels::cuda
