// A library with cuBLASLt's names that notes what is asked of it, for products_test.cpp. Its
// heuristic refuses its first answer, as the real one may (`state`), and what it offers has more
// workspace with each answer. It is no cuBLASLt: nothing is multiplied.
#include <cstring>
#include <map>
#include <vector>

#include "cublasLt.h"

namespace {

std::map<int, std::vector<unsigned char>> preferences;
std::vector<int64_t> leading;  // of the layouts of the latest operation
uint64_t multiplied_by = 0;
int algorithms = 3;
char something = 0;

template <typename Handle>
cublasStatus_t give(Handle* handle) {
  *handle = reinterpret_cast<Handle>(&something);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

// For the test; not in cuBLASLt. An attribute that nobody has set is 0 bytes long.
size_t fake_lt_preference(int attribute, void* value) {
  const auto& bytes = preferences[attribute];
  if (!bytes.empty()) std::memcpy(value, bytes.data(), bytes.size());
  return bytes.size();
}
uint64_t fake_lt_algorithm() { return multiplied_by; }
void fake_lt_offer(int count) { algorithms = count; }
// Leading dimension of layout i of the latest operation: B, A, D; 0: there is none.
int64_t fake_lt_leading(size_t i) { return i < leading.size() ? leading[i] : 0; }

size_t cublasLtGetVersion() { return 120500; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return give(handle); }
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
                              cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t,
                              const void*, const void*, cublasLtMatrixLayout_t, void*,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algo, void*,
                              size_t, cudaStream_t) {
  multiplied_by = algo->data[0];
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int asked_for,
                                              cublasLtMatmulHeuristicResult_t found[], int* count) {
  *count = asked_for < algorithms ? asked_for : algorithms;
  for (int i = 0; i < *count; ++i) {
    found[i] = {};
    found[i].state = i == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    found[i].algo.data[0] = static_cast<uint64_t>(i) + 100;
    found[i].workspaceSize = i == 0 ? 1u << 20 : 1024 * static_cast<size_t>(i);
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t,
                                        cudaDataType_t) {
  leading.clear();
  return give(made);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
                                              const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  preferences.clear();
  return give(made);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  const auto* from = static_cast<const unsigned char*>(value);
  preferences[attribute].assign(from, from + bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  const bool holds = columns > 0 && ld >= static_cast<int64_t>(rows);
  leading.push_back(ld);
  return holds ? give(made) : CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t,
                                                cublasLtMatrixLayoutAttribute_t, const void*,
                                                size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
