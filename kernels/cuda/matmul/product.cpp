#include "kernels/cuda/matmul/product.h"

#include <algorithm>
#include <array>
#include <optional>

#include "kernels/cuda/device/implementations.h"
#include "kernels/cuda/matmul/lt_product.h"
#include "kernels/cuda/matmul/product_kernels.h"

namespace ofsdp::kernels::cuda {
namespace {

// [Note: odd extents] cuBLASLt's fast kernels load 16 bytes at a time and compute whole tiles. A
// pitch that is a multiple of 16 bytes does not suffice; the extent along it must be one too.
// (H200, cuBLASLt 13.1: GPT-2's logits, 50257 columns with pitch 50304, ran at 102 to 208 TFLOP/s,
// other products at up to 700.) So we round the extent up. If the operand's pitch has room, the
// product uses that room in place, since it belongs to no one; else we copy the operand with
// padding, which costs a thousandth of the product for weights. Along the inner axis we fill the
// room with zeros.
constexpr int64_t kPackBytes = 16;
constexpr int64_t kTile = 64;               // elements: 50257 becomes 50304
constexpr int64_t kProductsACopied = 1024;  // multiplications per copied element, at least

enum class Axis : uint8_t { kRows, kColumns, kInner };
enum Operand : size_t { kA, kB, kD, kOperands };

// An operand's stored matrix, with the product's axis down its rows and along its columns.
struct OperandLayout {
  PitchedMatrix matrix;
  Axis down, along;
};

std::array<OperandLayout, kOperands> operand_layouts(const ProductShape& s) {
  const auto layout = [](bool turned, int64_t rows, int64_t columns, int64_t row, Axis down,
                         Axis along) {
    return turned ? OperandLayout{{columns, rows, row}, along, down}
                  : OperandLayout{{rows, columns, row}, down, along};
  };
  return {layout(s.transpose_a, s.rows, s.inner, s.row_a(), Axis::kRows, Axis::kInner),
          layout(s.transpose_b, s.inner, s.columns, s.row_b(), Axis::kInner, Axis::kColumns),
          layout(false, s.rows, s.columns, s.row_d(), Axis::kRows, Axis::kColumns)};
}

// The axis that is padded, its extent, and the operands that need a padded copy.
struct Padding {
  Axis axis;
  int64_t extent, padded;
  std::array<bool, kOperands> copied{};
};

bool has_axis(const OperandLayout& layout, Axis axis) {
  return layout.down == axis || layout.along == axis;
}

// Returns whether the operand's rows have room for `padded` elements of the axis.
bool has_room(const OperandLayout& layout, const Padding& p, int64_t pack) {
  return layout.along == p.axis && layout.matrix.row % pack == 0 && layout.matrix.row >= p.padded;
}

// Returns the padded copy's shape.
PitchedMatrix padded_matrix(const OperandLayout& layout, const Padding& p) {
  PitchedMatrix m = layout.matrix;
  (layout.down == p.axis ? m.rows : m.columns) = p.padded;
  m.row = m.columns;
  return m;
}

std::optional<Padding> padding_of(const ProductShape& s, int64_t least) {
  if (s.rows * s.columns * s.inner < least || s.batch != 1 || s.activation != Activation::kNone ||
      s.aux || s.wide || s.bias_grad == BiasGrad::kOfD) {
    return std::nullopt;
  }
  const auto pack = kPackBytes / static_cast<int64_t>(dtype_size(s.dtype));
  const auto layouts = operand_layouts(s);
  const std::array<int64_t, 3> extents{s.rows, s.columns, s.inner};
  for (const Axis axis : {Axis::kColumns, Axis::kRows, Axis::kInner}) {
    Padding p{axis, extents[static_cast<size_t>(axis)], 0};
    const bool along =
        std::ranges::any_of(layouts, [&](const OperandLayout& l) { return l.along == axis; });
    if (!along || p.extent % pack == 0) continue;
    p.padded = (p.extent + kTile - 1) / kTile * kTile;
    int64_t elements = 0;
    for (size_t i = 0; i < kOperands; ++i) {
      p.copied[i] = has_axis(layouts[i], axis) && !has_room(layouts[i], p, pack);
      const PitchedMatrix& m = layouts[i].matrix;
      if (p.copied[i]) elements += m.rows * m.columns;
    }
    const bool few = s.rows * s.columns * s.inner >= kProductsACopied * elements;
    if (few && p.padded - p.extent < p.extent / 8) return p;
  }
  return std::nullopt;
}

class PaddedProduct final : public MatrixProduct {
 public:
  static std::unique_ptr<MatrixProduct> make(DeviceState& device, const ProductShape& shape,
                                             const Padding& padding) {
    auto made = std::make_unique<PaddedProduct>(shape, padding);
    made->product_ = make_lt_product(device, made->padded_shape());
    if (made->product_ == nullptr) return nullptr;
    return made;
  }

  PaddedProduct(const ProductShape& shape, const Padding& padding)
      : shape_(shape),
        padding_(padding),
        layouts_(operand_layouts(shape)),
        size_(dtype_size(shape.dtype)) {
    for (size_t i = 0; i < kOperands; ++i) {
      places_[i] = bytes_;
      const PitchedMatrix m = padded_matrix(layouts_[i], padding);
      if (padding.copied[i]) bytes_ += round_up(static_cast<size_t>(m.rows * m.row) * size_);
    }
    vector_ = bytes_;
    if (has_vector()) bytes_ += round_up(static_cast<size_t>(padding.padded) * size_);
  }

  size_t workspace_bytes() const override { return bytes_ + product_->workspace_bytes(); }

  cudaError_t run(cudaStream_t stream, const ProductOperands& o) override {
    auto* const scratch = static_cast<std::byte*>(o.workspace);
    const void* const given[] = {o.a, o.b, o.d};
    ProductOperands moved = o;
    moved.workspace = scratch + bytes_;
    for (const size_t i : {kA, kB}) {
      const OperandLayout& layout = layouts_[i];
      if (padding_.copied[i]) {
        OFSDP_CUDA_TRY(copy_padded(size_, given[i], layout.matrix, scratch + places_[i],
                                   padded_matrix(layout, padding_), stream));
        (i == kA ? moved.a : moved.b) = scratch + places_[i];
      } else if (padding_.axis == Axis::kInner) {
        const PitchedMatrix room{layout.matrix.rows, padding_.padded, layout.matrix.row};
        OFSDP_CUDA_TRY(
            clear_columns(size_, const_cast<void*>(given[i]), room, padding_.extent, stream));
      }
    }
    const PitchedMatrix result = padded_matrix(layouts_[kD], padding_);
    if (padding_.copied[kD]) {
      moved.d = scratch + places_[kD];
      moved.c = nullptr;
      if (shape_.beta != 0) {
        OFSDP_CUDA_TRY(copy_padded(size_, o.c != nullptr ? o.c : o.d, layouts_[kD].matrix, moved.d,
                                   result, stream));
      }
    }
    const PitchedMatrix vector{1, padding_.extent, padding_.extent};
    const PitchedMatrix padded_vector{1, padding_.padded, padding_.padded};
    if (has_vector() && shape_.bias) {
      OFSDP_CUDA_TRY(copy_padded(size_, o.bias, vector, scratch + vector_, padded_vector, stream));
      moved.bias = scratch + vector_;
    }
    const bool sums = has_vector() && !shape_.bias;
    if (sums) moved.bias_grad = scratch + vector_;
    OFSDP_CUDA_TRY(product_->run(stream, moved));
    if (padding_.copied[kD]) {
      OFSDP_CUDA_TRY(copy_padded(size_, moved.d, result, o.d, layouts_[kD].matrix, stream));
    }
    return sums ? copy_padded(size_, moved.bias_grad, padded_vector, o.bias_grad, vector, stream)
                : cudaSuccess;
  }

 private:
  // Returns whether a bias or a bias gradient runs along the padded axis.
  bool has_vector() const {
    const Axis axis = padding_.axis;
    return (axis == Axis::kColumns && (shape_.bias || shape_.bias_grad == BiasGrad::kOfB)) ||
           (axis == Axis::kRows && shape_.bias_grad == BiasGrad::kOfA);
  }

  ProductShape padded_shape() const {
    ProductShape s = shape_;
    (padding_.axis == Axis::kRows      ? s.rows
     : padding_.axis == Axis::kColumns ? s.columns
                                       : s.inner) = padding_.padded;
    const auto row = [&](Operand i) {
      return padding_.copied[i] ? padded_matrix(layouts_[i], padding_).row : layouts_[i].matrix.row;
    };
    s.ld_a = row(kA);
    s.ld_b = row(kB);
    s.ld_d = row(kD);
    return s;
  }

  ProductShape shape_;
  Padding padding_;
  std::array<OperandLayout, kOperands> layouts_;
  size_t size_;
  std::array<size_t, kOperands> places_{};  // workspace offsets of the copies
  size_t vector_ = 0, bytes_ = 0;           // the vector's offset; bytes of all copies
  std::unique_ptr<MatrixProduct> product_;
};

}  // namespace

std::unique_ptr<MatrixProduct> make_product(DeviceState& device, ProductShape shape,
                                            int64_t min_padded) {
  if (lt().handle == nullptr || !product_has_epilogue(shape)) return nullptr;
  shape.tf32 = device.tf32 && shape.dtype == DType::kFloat32;
  const auto padding = padding_of(shape, min_padded);
  return padding ? PaddedProduct::make(device, shape, *padding) : make_lt_product(device, shape);
}

}  // namespace ofsdp::kernels::cuda
