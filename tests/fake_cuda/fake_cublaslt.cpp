// A library with cuBLASLt's names, on the runtime that checks the rules: products (lt_product.h)
// are queued on their streams. It holds the caller to the promises made to the heuristic, and notes
// the requests for host_code_test.cpp. The heuristic refuses the first answer, as the real one may
// (`state`); each further answer has more workspace.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fake_cuda/cublasLt.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/lt_product.h"

using fake_cuda::Attributes;
using fake_cuda::get;
using fake_cuda::Layout;
using fake_cuda::Matrix;
using fake_cuda::Product;

namespace {

Attributes preferences;        // the latest
std::vector<int64_t> leading;  // of the latest operation's layouts
uint64_t multiplied_by = 0;
int algorithms = 3;
char something = 0;

void set(Attributes& attributes, int which, const void* value, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(value);
  attributes[which].assign(from, from + bytes);
}

}  // namespace

struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  Attributes attributes;
};
struct cublasLtMatmulPreferenceOpaque_t {
  Attributes attributes;
};

namespace {

// --- promises to the heuristic, kept in the library's part of an algorithm ---
constexpr int kPromises[] = {
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
constexpr uint32_t kUnlessPromised = 256;
constexpr size_t kWorkspaceAlignment = 256, kVectorAlignment = 16;

bool aligned(const char* name, const void* data, size_t to) {
  if (reinterpret_cast<uintptr_t>(data) % to == 0) return true;
  char operand[64];
  std::snprintf(operand, sizeof(operand), "%s at %p, promised %zu bytes", name, data, to);
  fake_cuda::say_broken("operands are as aligned as was promised", "cublasLtMatmul", operand);
  return false;
}

bool keeps_promises(const Product& p, const cublasLtMatmulAlgo_t& algo) {
  const Matrix* matrices[] = {&p.a, &p.b, &p.c, &p.d};
  const char* names[] = {"A", "B", "C", "D"};
  bool all = aligned("workspace", p.workspace, kWorkspaceAlignment);
  if (p.has_bias() || p.sums()) all = aligned("bias", p.vector, kVectorAlignment) && all;
  for (int i = 0; i < 4; ++i) {
    const uint64_t promised = algo.data[1] >> (16 * i) & 0xffff;
    all = aligned(names[i], matrices[i]->data, promised) && all;
  }
  if (p.workspace_bytes >= algo.data[2]) return all;
  fake_cuda::say_broken(
      "a workspace is as large as its algorithm asks", "cublasLtMatmul",
      std::to_string(p.workspace_bytes) + " bytes of " + std::to_string(algo.data[2]));
  return false;
}

std::vector<fake_cuda::Operand> operands_of(const Product& p) {
  std::vector<fake_cuda::Operand> all{{"A", p.a.data, p.a.bytes()},
                                      {"B", p.b.data, p.b.bytes()},
                                      {"D", p.d.data, p.d.bytes()},
                                      {"workspace", p.workspace, p.workspace_bytes}};
  const size_t size = fake_cuda::width(p.d.type);
  if (p.beta != 0) all.push_back({"C", p.c.data, p.c.bytes()});
  if (p.has_bias() || p.sums()) {
    all.push_back({"bias", p.vector, static_cast<size_t>(p.vector_length()) * size});
  }
  const int64_t beside = (p.d.columns - 1) * p.aux_leading + p.d.rows;
  if (p.has_aux()) all.push_back({"aux", p.aux, static_cast<size_t>(beside) * size});
  return all;
}

}  // namespace

extern "C" {

// For the test; not in cuBLASLt. An attribute that was never set has 0 bytes.
size_t fake_lt_preference(int attribute, void* value) {
  const auto& bytes = preferences[attribute];
  if (!bytes.empty()) std::memcpy(value, bytes.data(), bytes.size());
  return bytes.size();
}
uint64_t fake_lt_algorithm() { return multiplied_by; }
void fake_lt_offer(int count) { algorithms = count; }
// Leading dimension of layout i in the latest operation: B, A, D; 0: there is none.
int64_t fake_lt_leading(size_t i) { return i < leading.size() ? leading[i] : 0; }

size_t cublasLtGetVersion() { return 120500; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&something);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t bytes, cudaStream_t stream) {
  multiplied_by = algo->data[0];
  const Attributes& asked = operation->attributes;
  const auto turned = [&](int which) { return get(asked, which, CUBLAS_OP_N) == CUBLAS_OP_T; };
  const Product product{Matrix{*a_layout, a, turned(CUBLASLT_MATMUL_DESC_TRANSA)},
                        Matrix{*b_layout, b, turned(CUBLASLT_MATMUL_DESC_TRANSB)},
                        Matrix{*c_layout, c},
                        Matrix{*d_layout, d},
                        *static_cast<const float*>(alpha),
                        *static_cast<const float*>(beta),
                        operation->compute == CUBLAS_COMPUTE_32F_FAST_TF32,
                        get<int>(asked, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT),
                        get<void*>(asked, CUBLASLT_MATMUL_DESC_BIAS_POINTER),
                        get<void*>(asked, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER),
                        get<int64_t>(asked, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD),
                        workspace,
                        bytes};
  if (!keeps_promises(product, *algo)) return CUBLAS_STATUS_INVALID_VALUE;
  const cudaError_t error = fake_cuda::enqueue("cublasLtMatmul", stream, operands_of(product),
                                               [product] { product.run(); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int asked_for,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = asked_for < algorithms ? asked_for : algorithms;
  uint64_t promised = 0;
  for (int i = 0; i < 4; ++i) {
    promised |= uint64_t{get(preference->attributes, kPromises[i], kUnlessPromised)} << (16 * i);
  }
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].state = i == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    found[i].workspaceSize = i == 0 ? 1u << 20 : 1024 * static_cast<size_t>(i);
    found[i].algo.data[0] = static_cast<uint64_t>(i) + 100;
    found[i].algo.data[1] = promised;
    found[i].algo.data[2] = found[i].workspaceSize;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t) {
  leading.clear();
  *made = new cublasLtMatmulDescOpaque_t{compute, {}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  set(operation->attributes, attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  preferences.clear();
  *made = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  set(preference->attributes, attribute, value, bytes);
  set(preferences, attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  if (columns == 0 || ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  leading.push_back(ld);
  *made = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld, {}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t bytes) {
  set(layout->attributes, attribute, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
