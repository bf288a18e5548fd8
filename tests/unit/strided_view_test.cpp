// StridedView against tensors that number their elements and move them one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "importer/passes/fusion/fusion.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace strided_view_test {

using Numbers = std::vector<int64_t>;

// Calls f(indices) for every element, in order.
void for_each_element(const Numbers& sizes, const auto& f) {
  Numbers at(sizes.size(), 0);
  const int64_t count = Shape(sizes).numel();
  for (int64_t i = 0; i < count; ++i) {
    f(at);
    for (size_t axis = sizes.size(); axis-- > 0;) {
      if (++at[axis] < sizes[axis]) break;
      at[axis] = 0;
    }
  }
}

// The numbers of the elements in the view.
Numbers named(const StridedView& view) {
  Numbers found;
  for_each_element(view.sizes, [&](const Numbers& at) {
    found.push_back(std::inner_product(at.begin(), at.end(), view.steps.begin(), view.first));
  });
  return found;
}

// A value: a shape and the numbers of its elements.
struct Value {
  Numbers sizes, elements;

  int64_t at(const Numbers& indices) const {
    int64_t place = 0;
    for (size_t i = 0; i < sizes.size(); ++i) place = place * sizes[i] + indices[i];
    return elements[static_cast<size_t>(place)];
  }
};

Value transposed(const Value& x, const Numbers& perm) {
  Value made;
  for (int64_t axis : perm) made.sizes.push_back(x.sizes[static_cast<size_t>(axis)]);
  for_each_element(made.sizes, [&](const Numbers& at) {
    Numbers from(at.size());
    for (size_t i = 0; i < at.size(); ++i) from[static_cast<size_t>(perm[i])] = at[i];
    made.elements.push_back(x.at(from));
  });
  return made;
}

Value part_of(const Value& x, size_t axis, int64_t begin, int64_t size) {
  Value made{x.sizes, {}};
  made.sizes[axis] = size;
  for_each_element(made.sizes, [&](Numbers at) {
    at[axis] += begin;
    made.elements.push_back(x.at(at));
  });
  return made;
}

// Whether any steps give the elements: tries steps from single moves along the axes.
bool has_steps(const Value& x) {
  Numbers steps;
  for (size_t axis = 0; axis < x.sizes.size(); ++axis) {
    Numbers at(x.sizes.size(), 0);
    at[axis] = x.sizes[axis] > 1 ? 1 : 0;
    steps.push_back(x.at(at) - x.elements[0]);
  }
  return named({x.elements[0], x.sizes, steps}) == x.elements;
}

// The same elements in up to six axes.
Numbers random_shape(int64_t count, std::mt19937& random) {
  Numbers sizes;
  for (int64_t factor : {2, 2, 2, 3, 3, 5}) {
    if (count % factor != 0) continue;
    count /= factor;
    const bool joins = !sizes.empty() && random() % 2 == 0;
    joins ? void(sizes[random() % sizes.size()] *= factor) : sizes.push_back(factor);
  }
  sizes.push_back(count);
  if (random() % 3 == 0)
    sizes.insert(sizes.begin() + static_cast<long>(random() % sizes.size()), 1);
  std::ranges::shuffle(sizes, random);
  return sizes;
}

TEST(StridedView, NamesTheElementsThatMovesGive) {
  std::mt19937 random(3);
  int described = 0, refused = 0;
  for (int trial = 0; trial < 600; ++trial) {
    Value value{random_shape(360, random), Numbers(360)};
    std::iota(value.elements.begin(), value.elements.end(), 0);
    StridedView view = StridedView::of(Shape(value.sizes));
    ASSERT_EQ(named(view), value.elements);
    for (int move = 0; move < 4; ++move) {
      const size_t rank = value.sizes.size();
      if (const auto kind = random() % 3; kind == 0) {
        Numbers perm(rank);
        std::iota(perm.begin(), perm.end(), 0);
        std::ranges::shuffle(perm, random);
        value = transposed(value, perm);
        view = view.permuted(perm);
      } else if (kind == 1) {
        const size_t axis = random() % rank;
        const auto size = static_cast<int64_t>(random()) % value.sizes[axis] + 1;
        const auto begin = static_cast<int64_t>(random()) % (value.sizes[axis] - size + 1);
        value = part_of(value, axis, begin, size);
        view = view.part(axis, begin, size);
      } else {
        const auto count = static_cast<int64_t>(value.elements.size());
        const Value other{random_shape(count, random), value.elements};
        const auto made = view.reshaped(Shape(other.sizes));
        ASSERT_EQ(made.has_value(), has_steps(other)) << trial;
        ++(made ? described : refused);
        if (!made) continue;
        value = other;
        view = *made;
      }
      ASSERT_EQ(view.sizes, value.sizes);
      ASSERT_EQ(named(view), value.elements) << trial;
    }
  }
  EXPECT_GT(described, 150);
  EXPECT_GT(refused, 60);
}

TEST(StridedView, NothingDescribesAnEmptyReshape) {
  EXPECT_FALSE(StridedView::of({0, 4}).reshaped({4, 0}).has_value());
}

}  // namespace strided_view_test
}  // namespace ofsdp
