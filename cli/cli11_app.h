#pragma once

/// CLI11's header is large; who only passes an App on needs no more than this.
namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's name
class App;
}
