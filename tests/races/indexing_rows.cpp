// Embeddings and their gradients, and kernels that find or pick elements.
#include "kernels/cuda/indexing/gather_scatter.h"
#include "kernels/cuda/indexing/selection.h"
#include "kernels/cuda/matmul/stored_product.h"
#include "tests/races/table.h"

namespace ofsdp::races {
namespace {

using namespace kernels::cuda;

// Different ids, or the same one everywhere, like token types.
void add_embedding(Table& table, DType dtype, int64_t inner, int64_t ids, int64_t count) {
  constexpr int64_t kRows = 50;
  const auto extent = [=](Buffers& m) {
    GatherParams e;
    e.n = kRows;
    e.inner = inner;
    e.count = count;
    e.indices = m.whole(count, ids);
    return e;
  };
  table.row(named("embedding", dtype, inner, ids, count), [=](Buffers& m) {
    return gather(extent(m), kernels::dtype_size(dtype), m.floats(dtype, kRows * inner),
                  m.floats(dtype, count * inner), nullptr);
  });
  for (const bool onto : {false, true}) {
    table.row(named("embedding gradient", onto ? "onto" : "anew", dtype, inner, ids, count),
              [=](Buffers& m) {
                const GatherParams e = extent(m);
                return gather_grad(e, dtype, m.floats(dtype, count * inner),
                                   m.floats(dtype, kRows * inner), onto,
                                   m.zeros(gather_grad_scratch(e)), nullptr);
              });
  }
}

void add_stored(Table& table) {
  table.row("stored matrices", [](Buffers& m) {
    constexpr int64_t kRows = 30, kColumns = 2048, kBlock = 32;
    kernels::StoredMatrix matrix;
    matrix.rows = kRows;
    matrix.columns = matrix.row_pitch = kColumns;
    matrix.scale_dtype = DType::kFloat32;
    matrix.row_step = kColumns / kBlock;
    matrix.column_block = kBlock;
    matrix.column_step = 1;
    kernels::StoredBytes bytes;
    bytes.elements = m.blank<std::byte>(kRows * kColumns / 2);
    bytes.scales = reinterpret_cast<const std::byte*>(m.floats(kRows * matrix.row_step));
    float* const values = m.floats(kRows * kColumns);
    if (const cudaError_t error = widen_stored(matrix, bytes, 0, {}, values, nullptr)) return error;
    const StoredRows rows{1, kRows, kColumns, 7, true, m.whole(7, kRows)};
    return gather_stored(matrix, bytes, rows, {}, values, nullptr);
  });
}

void add_found(Table& table) {
  table.row("places of what is not 0", [](Buffers& m) {
    const FoundParams e{5000, 4, true, true};
    int64_t* const positions = m.blank<int64_t>(2 * e.n);
    if (const cudaError_t error = found_positions(e, m.floats(e.n), positions, m.blank<int64_t>(1),
                                                  m.zeros(found_scratch(e)), nullptr)) {
      return error;
    }
    const int64_t shape[] = {50, 100};
    return split_positions(e.n, shape, 2, positions, nullptr);
  });
}

void add_scatter(Table& table, ScatterKind kind, const char* name) {
  table.row(named("scatter", name), [=](Buffers& m) {
    ScatterParams e;
    e.kind = kind;
    e.rows = 20;
    e.inner = 6;
    e.count = 700;
    return scatter(e, m.whole(e.count, e.rows), m.floats(e.count * e.inner),
                   m.floats(e.rows * e.inner), m.zeros(scatter_scratch(e)), nullptr);
  });
}

void add_top(Table& table, int64_t k) {
  table.row(named("top", k), [=](Buffers& m) {
    TopParams e;
    e.outer = 20;
    e.n = 300;
    e.k = k;
    return top(e, m.floats(6000), m.floats(20 * k), m.blank<int64_t>(20 * k),
               m.zeros(top_scratch(e) + 1), nullptr);
  });
}

void add_unique(Table& table, bool sorted) {
  table.row(named("unique", sorted ? "sorted" : "as they appear"), [=](Buffers& m) {
    UniqueParams e;
    e.dtype = DType::kInt64;
    e.n = 300;
    e.inner = 2;
    e.sorted = sorted;
    int64_t* outputs[3];
    for (int64_t*& output : outputs) output = m.blank<int64_t>(e.n);
    return find_unique(e, m.whole(2 * e.n, 9), outputs[0], outputs[1], outputs[2],
                       m.blank<int64_t>(1), m.zeros(unique_scratch(e)), nullptr);
  });
}

}  // namespace

void add_indexing_rows(Table& table) {
  for (const DType dtype : table.floats()) {
    for (const int64_t inner : table.some<int64_t>({96, 7})) {
      for (const int64_t ids : {50, 1}) add_embedding(table, dtype, inner, ids, 300);
    }
  }
  add_embedding(table, DType::kFloat32, 4, 1, 4200);  // a run over groups of chunks
  table.row("rows of tuples", [](Buffers& m) {
    TupleParams e;
    e.tuples = 300;
    e.depth = 2;
    e.sizes[0] = e.sizes[1] = 7;
    e.indices = m.whole(600, 7);
    return tuple_rows(e, m.blank<int64_t>(300), nullptr);
  });
  add_stored(table);
  add_found(table);
  add_scatter(table, ScatterKind::kNone, "put");
  add_scatter(table, ScatterKind::kAdd, "add");
  add_scatter(table, ScatterKind::kMax, "max");
  add_top(table, 3);
  add_top(table, 60);
  add_unique(table, true);
  add_unique(table, false);
}

}  // namespace ofsdp::races
