// Kernel parameters: the device form of `RowSpace` in src/rows.rs. 64-bit throughout: tensors pass 2^32
// elements and a row may pass 2^31 columns. Layouts match src/cuda/params.rs field by field.
#pragma once
#include "device.cuh"

namespace online {

constexpr int MAX_ROW_DIMS = 12;

struct Rows {
  i64 rows, cols;
  i64 dims; // row dims in use
  i64 sizes[MAX_ROW_DIMS];
};

struct Operand {
  i64 offset; // elements, as everything here
  i64 col_stride;
  i64 len; // elements of the whole storage: what may be read
  i64 strides[MAX_ROW_DIMS];
};

// Element of the operand's storage at row `row`, column 0. One dim, the usual case, has no division.
__device__ __forceinline__ i64 row_offset(const Rows &rows, const Operand &op, i64 row) {
  if ((int)rows.dims < 2) return op.offset + row * op.strides[0]; // no dims: one row, and a stride of 0
  i64 offset = op.offset;
#pragma unroll 1
  for (int i = (int)rows.dims - 1; i > 0; --i) {
    i64 size = rows.sizes[i], next;
    if (((u64)row | (u64)size) >> 32) {
      next = row / size;
    } else {
      next = (u32)row / (u32)size; // 64-bit division costs about five times this
    }
    offset += (row - next * size) * op.strides[i];
    row = next;
  }
  return offset + row * op.strides[0];
}

// The same of an index of all dims but the innermost.
__device__ __forceinline__ i64 outer_offset(const Rows &rows, const Operand &op, u32 outer) {
  if ((int)rows.dims < 2) return 0;
  i64 offset = 0;
#pragma unroll 1
  for (int i = (int)rows.dims - 2; i > 0; --i) {
    u32 size = (u32)rows.sizes[i], next = outer / size;
    offset += (outer - next * size) * op.strides[i];
    outer = next;
  }
  return offset + outer * op.strides[0];
}

} // namespace online
