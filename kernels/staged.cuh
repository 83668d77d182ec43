// A row in shared memory, from any element on, in vectors of 16 bytes (as in access.cuh): what UnalignedRow does in
// memory with two aligned loads a vector, and stores that vectors share, without either.
//
//   words       |  w0  |  w1  |  w2  |  w3  |  w4  |      vector v of a row of halves that begins inside a word is of
//   vector v       |<-- 8 elements ------>|                the last half of w0 to the first half of w4
//
// Nothing but the row's own elements is read or written: other threads write what is beside them. Lanes are 16 bytes apart, so
// that each access of a word takes 4 turns of the shared memory's banks. There is time: its 128 bytes a clock are 16
// times what an SM gets of the memory's.
#pragma once
#include "access.cuh"

namespace online {

// A vector at any element, in words, or in what an element is if that is longer.
template <int SIZE> struct Staged {
  // From `at`, which is inside a word if `odd`; of the first `left` elements only, and zeros for the others, if there
  // are not as many as a vector has: what is beside a row another thread may be writing.
  template <bool WHOLE> static __device__ __forceinline__ Words load(const u8 *at, bool odd, int left) {
    Words x;
    if (SIZE == 8) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        u64 w = WHOLE || i < left ? ((const u64 *)at)[i] : 0;
        x.w[2 * i] = (u32)w;
        x.w[2 * i + 1] = (u32)(w >> 32);
      }
    } else if (SIZE == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x.w[i] = WHOLE || i < left ? ((const u32 *)at)[i] : 0;
    } else if (!odd) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x.w[i] = load_pair<WHOLE>(at + 4 * i, left - 2 * i);
    } else {
      // A half, three pairs, a half, moved together.
      u32 w[5];
      w[0] = WHOLE || left > 0 ? (u32)*(const u16 *)at << 16 : 0;
#pragma unroll
      for (int i = 1; i < 4; ++i) w[i] = load_pair<WHOLE>(at + 4 * i - 2, left - 2 * i + 1);
      w[4] = WHOLE || left > 7 ? *(const u16 *)(at + 14) : 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) x.w[i] = shift_bytes(w[i], w[i + 1], 2);
    }
    return x;
  }

  // The first `left` elements of x, or all of them.
  static __device__ __forceinline__ void store(u8 *at, bool odd, const Words &x, int left) {
    if (SIZE == 8) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (i < left) ((u64 *)at)[i] = (u64)x.w[2 * i + 1] << 32 | x.w[2 * i];
    } else if (SIZE == 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (i < left) ((u32 *)at)[i] = x.w[i];
    } else if (!odd) {
#pragma unroll
      for (int i = 0; i < 4; ++i) store_pair(at + 4 * i, x.w[i], left - 2 * i);
    } else {
      if (left > 0) *(u16 *)at = (u16)x.w[0];
#pragma unroll
      for (int i = 0; i < 3; ++i) store_pair(at + 2 + 4 * i, shift_bytes(x.w[i], x.w[i + 1], 2), left - 2 * i - 1);
      if (left > 7) *(u16 *)(at + 14) = (u16)(x.w[3] >> 16);
    }
  }

private:
  template <bool WHOLE> static __device__ __forceinline__ u32 load_pair(const u8 *at, int left) {
    u32 pair = 0;
    if (WHOLE || left > 1) pair = *(const u32 *)at;
    if (!WHOLE && left == 1) pair = *(const u16 *)at;
    return pair;
  }
  static __device__ __forceinline__ void store_pair(u8 *at, u32 pair, int left) {
    // No else: it would be a branch, 8 instructions for these 4.
    if (left > 1) *(u32 *)at = pair;
    if (left == 1) *(u16 *)at = (u16)pair;
  }
};

// The first `left` elements of x (or all), then `fill`.
template <class D> __device__ __forceinline__ Words kept(Words x, int left, typename D::Storage fill) {
  constexpr int SIZE = (int)sizeof(fill);
  Words other = Elements<D, int>::filled(fill);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    u32 keep = left > i * 4 / SIZE ? ~0u : 0u; // of a bit each, not of an element: a lane's are the same in every row
    if (SIZE == 2 && left == 2 * i + 1) keep = 0xffffu;
    x.w[i] = (x.w[i] & keep) | (other.w[i] & ~keep);
  }
  return x;
}

// A row of which each thread has N vectors, and N no more than it takes: all but a thread's last are whole.
template <class D, int N> struct StagedRow {
  typedef typename D::Storage T;
  static constexpr int SIZE = (int)sizeof(T);
  u8 *row;
  int cols;
  bool odd; // begins inside a word

  __device__ __forceinline__ StagedRow(void *memory, int shift, int cols_)
      : StagedRow(memory, shift, cols_, SIZE == 2 && (shift & 2)) {}
  __device__ __forceinline__ StagedRow(void *memory, int shift, int cols_, bool odd_) : row((u8 *)memory + shift), cols(cols_), odd(odd_) {}

  __device__ __forceinline__ void load(Words (&x)[N], int v, int step, T fill) const {
    if (odd)
      load_all<true>(x, v, step, fill);
    else
      load_all<false>(x, v, step, fill);
  }

  template <class Near> __device__ __forceinline__ void store(const Words (&x)[N], int v, int step, Near &) const {
    if (odd)
      store_all<true>(x, v, step);
    else
      store_all<false>(x, v, step);
  }

private:
  template <bool ODD> __device__ __forceinline__ void load_all(Words (&x)[N], int v, int step, T fill) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      int at = v + k * step, left = k < N - 1 ? D::LEN : cols - at * D::LEN;
      x[k] = Elements<D, int>::filled(fill);
      if (k < N - 1) {
        x[k] = Staged<SIZE>::template load<true>(row + vector_offset(at), ODD, left);
      } else {
        x[k] = kept<D>(Staged<SIZE>::template load<false>(row + vector_offset(at), ODD, left), left, fill);
      }
    }
  }

  template <bool ODD> __device__ __forceinline__ void store_all(const Words (&x)[N], int v, int step) const {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      int at = v + k * step;
      Staged<SIZE>::store(row + vector_offset(at), ODD, x[k], k < N - 1 ? D::LEN : cols - at * D::LEN);
    }
  }
};

} // namespace online
