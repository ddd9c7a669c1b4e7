# cmake -D README=… -D EXAMPLE=… -P readme_example.cmake
# The C++ block of the README is examples/example.cpp, letter by letter.
file(READ ${README} readme)
file(READ ${EXAMPLE} example)
string(FIND "${readme}" "```cpp\n${example}```" position)
if(position EQUAL -1)
  message(FATAL_ERROR "the C++ example of ${README} is not ${EXAMPLE}; copy it there")
endif()
