#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "kernels/cuda/matmul/lt_product.h"
#include "kernels/cuda/matmul/product_kernels.h"

namespace ofsdp::kernels::cuda {
namespace {

constexpr float kMillisecondsEach = 5;  // time each candidate about this long, at least one run
constexpr int kMaxRuns = 10;
constexpr float kNever = std::numeric_limits<float>::max();

struct Buffer {
  void* data = nullptr;
  int64_t count = 0;  // elements
};

// Random operands on the device, and buffers for the outputs.
class Trial {
 public:
  Trial(const ProductShape& shape, size_t workspace) : shape_(shape) {
    const ProductShape& s = shape;
    const int64_t b = s.batch - 1;
    make(kA, b * s.stride_a + (s.transpose_a ? s.inner : s.rows) * s.row_a());
    make(kB, b * s.stride_b + (s.transpose_b ? s.columns : s.inner) * s.row_b());
    make(kD, b * s.stride_d + s.rows * s.row_d());
    make(kVector, std::max(s.rows, s.columns));
    make(kAux, s.aux ? s.rows * s.columns : 0);
    for (const Operand which : {kA, kB}) ok_ = ok_ && fill(which);
    ok_ = ok_ && cudaMalloc(&workspace_, workspace + 1) == cudaSuccess &&
          cudaMalloc(reinterpret_cast<void**>(&digest_), sizeof(*digest_)) == cudaSuccess &&
          cudaEventCreate(&began_) == cudaSuccess && cudaEventCreate(&ended_) == cudaSuccess;
  }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    for (const Buffer& buffer : buffers_) cudaFree(buffer.data);
    cudaFree(workspace_);
    cudaFree(digest_);
    if (began_ != nullptr) cudaEventDestroy(began_);
    if (ended_ != nullptr) cudaEventDestroy(ended_);
    cudaGetLastError();
  }

  bool ok() const { return ok_; }

  // Stores a digest of the candidate's outputs in `found`; returns false if it cannot run.
  bool digest_of(int candidate, const RunCandidate& run, unsigned long long& found) {
    for (const Operand which : kWritten) {
      if (!fill(which)) return false;
    }
    if (cudaMemset(digest_, 0, sizeof(*digest_)) != cudaSuccess) return false;
    if (!run(candidate, operands())) return false;
    for (const Operand which : kWritten) {
      const Buffer& buffer = buffers_[which];
      const auto bytes = static_cast<int64_t>(dtype_size(type_of(which))) * buffer.count;
      if (add_digest(buffer.data, (bytes + 3) / 4, digest_, nullptr) != cudaSuccess) return false;
    }
    return cudaMemcpy(&found, digest_, sizeof(found), cudaMemcpyDeviceToHost) == cudaSuccess;
  }

  float milliseconds(int candidate, const RunCandidate& run) {
    const float one = timed(candidate, run, 1);
    if (one == kNever) return kNever;
    const float wanted = kMillisecondsEach / std::max(one, 1e-3f);
    return timed(candidate, run, std::clamp(static_cast<int>(wanted), 1, kMaxRuns));
  }

 private:
  enum Operand : size_t { kA, kB, kD, kVector, kAux, kBuffers };
  static constexpr std::array kWritten{kD, kVector, kAux};

  DType type_of(Operand which) const { return which == kD ? shape_.result() : shape_.dtype; }

  // Rounds up to whole 4-byte words. Only fill_random writes the element that may be added.
  void make(Operand which, int64_t count) {
    Buffer& buffer = buffers_[which];
    buffer.count = (count + 1) / 2 * 2;
    const auto bytes = dtype_size(type_of(which)) * static_cast<size_t>(buffer.count);
    ok_ = ok_ && cudaMalloc(&buffer.data, std::max<size_t>(bytes, 1)) == cudaSuccess;
  }

  bool fill(Operand which) {
    const Buffer& buffer = buffers_[which];
    return fill_random(type_of(which), buffer.data, buffer.count, static_cast<uint32_t>(which),
                       nullptr) == cudaSuccess;
  }

  ProductOperands operands() const {
    return {.a = buffers_[kA].data,
            .b = buffers_[kB].data,
            .bias = buffers_[kVector].data,
            .aux = buffers_[kAux].data,
            .d = buffers_[kD].data,
            .bias_grad = buffers_[kVector].data,
            .workspace = workspace_};
  }

  float timed(int candidate, const RunCandidate& run, int runs) {
    float found = 0;
    bool good = cudaEventRecord(began_, nullptr) == cudaSuccess;
    for (int i = 0; i < runs && good; ++i) good = run(candidate, operands());
    good = good && cudaEventRecord(ended_, nullptr) == cudaSuccess &&
           cudaEventSynchronize(ended_) == cudaSuccess &&
           cudaEventElapsedTime(&found, began_, ended_) == cudaSuccess;
    return good ? found / static_cast<float>(runs) : kNever;
  }

  ProductShape shape_;
  std::array<Buffer, kBuffers> buffers_{};
  void* workspace_ = nullptr;
  unsigned long long* digest_ = nullptr;
  cudaEvent_t began_ = nullptr, ended_ = nullptr;
  bool ok_ = true;
};

}  // namespace

int fastest_candidate(const ProductShape& shape, int count, bool may_vary, size_t workspace,
                      const RunCandidate& run) {
  if (count < 2 || shape.batch * shape.rows * shape.columns * shape.inner < kMinTried) return 0;
  Trial trial(shape, workspace);
  if (!trial.ok()) return 0;
  int best = 0;
  float least = kNever;
  std::optional<unsigned long long> first;  // digest of the first candidate that runs
  for (int i = 0; i < count; ++i) {
    unsigned long long found = 0;
    if (!trial.digest_of(i, run, found)) continue;
    if (!first) first = found;
    if (!may_vary && found != *first) continue;
    const float time = trial.milliseconds(i, run);
    if (time < least) best = i;
    least = std::min(least, time);
  }
  return best;
}

}  // namespace ofsdp::kernels::cuda
