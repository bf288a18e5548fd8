// GraphVector: the list in which a graph has its values, nodes or parameters. A std::vector; in a
// build with AddressSanitizer it moves to other memory whenever it grows.
//
// [Note: references into a graph] A reference to an element is good until the list grows. With
// spare capacity the element often stays where it was, so a wrong use passes nearly every test, and
// fails in a user's run. Here it never stays: the first test that comes by reports the use, with
// the stack of the growth that freed the element.
//
// Ownership: the list owns its elements. Threads: as std::vector.
#pragma once

#include <utility>
#include <vector>

namespace ofsdp::importer {

template <typename T>
class MovingVector : public std::vector<T> {
 public:
  using Base = std::vector<T>;
  using Base::Base;
  MovingVector(Base list) : Base(std::move(list)) {}  // NOLINT: implicit on purpose

  void push_back(T element) {
    move_elsewhere(this->size() + 1);
    Base::push_back(std::move(element));
  }

  template <typename... Args>
  T& emplace_back(Args&&... args) {
    push_back(T(std::forward<Args>(args)...));
    return this->back();
  }

  void resize(size_t size) {
    if (size > this->size()) move_elsewhere(size);
    Base::resize(size);
  }

  template <typename Iterator>
  void insert(typename Base::const_iterator at, Iterator first, Iterator last) {
    const auto place = at - this->cbegin();
    Base all(this->cbegin(), this->cbegin() + place);
    all.insert(all.end(), first, last);
    all.insert(all.end(), this->cbegin() + place, this->cend());
    this->swap(all);
  }

 private:
  // Every growth copies the list, which is the square of its length: a list longer than any that a
  // unit test grows element by element moves as std::vector does.
  static constexpr size_t kMostMoved = 4096;

  void move_elsewhere(size_t size) {
    if (size > kMostMoved) return;
    Base moved;
    moved.reserve(size);
    for (T& element : *this) moved.push_back(std::move(element));
    this->swap(moved);
  }
};

#if defined(__SANITIZE_ADDRESS__)
template <typename T>
using GraphVector = MovingVector<T>;
#else
template <typename T>
using GraphVector = std::vector<T>;
#endif

}  // namespace ofsdp::importer
