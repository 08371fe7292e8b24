# SPDX-License-Identifier: Apache-2.0
# The CANN backend: an operator project (cann_project/CMakeLists.txt) is laid out, configured, built and
# installed by the toolkit's own build functions, step by step; pack.py takes the result. Whatever step fails
# stops the build with its name, the operator at fault and a log. Tried with tests/cann_toolkit, no real toolkit.
set(cann ${CMAKE_BINARY_DIR}/cann)
set(project ${cann}/project)
file(COPY ${CMAKE_CURRENT_LIST_DIR}/cann_project/CMakeLists.txt DESTINATION ${project})
file(REMOVE_RECURSE ${project}/cmake ${cann}/build/CMakeCache.txt)   # no option is remembered
set(toolkit "${FLA_CANN_HOME} ${FLA_CANN} ${FLA_CANN_ASC}")
if(EXISTS ${cann}/toolkit)
  file(READ ${cann}/toolkit before)
  if(NOT before STREQUAL toolkit)   # nor anything that another toolkit compiled
    file(REMOVE_RECURSE ${cann}/build)
  endif()
endif()
file(WRITE ${cann}/toolkit "${toolkit}")
if(NOT FLA_CANN_ASC)   # CANN 8.1 to 8.3 have the functions in the project template, newer ones a CMake package
  file(COPY ${FLA_CANN_HOME}/tools/op_project_templates/ascendc/customize/cmake DESTINATION ${project})
endif()

function(fla_add_op op op_type cores)
  set_property(GLOBAL APPEND PROPERTY FLA_CANN_OPS ${op})
  set_property(GLOBAL APPEND PROPERTY FLA_CANN_NAMES ${op_type}:${op})
endfunction()

function(fla_finish)
  get_property(ops GLOBAL PROPERTY FLA_CANN_OPS)
  get_property(names GLOBAL PROPERTY FLA_CANN_NAMES)
  list(JOIN names " " names)
  execute_process(COMMAND ${Python3_EXECUTABLE} ${FLA_ASCENDC}/codegen/cann_project.py ${FLA_ASCENDC}
    ${FLA_GENERATED} ${project} ${ops} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${FLA_ASCENDC}/ops/*.h ${FLA_ASCENDC}/ops/*.cpp
    ${FLA_ASCENDC}/common/*.h ${FLA_ASCENDC}/common/*.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources}
    ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/cann_project/CMakeLists.txt)
  # The project's options, as a cache file: lists stay lists.
  file(WRITE ${cann}/options.cmake "")
  foreach(option
      "CMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}" "CMAKE_INSTALL_PREFIX=${cann}/install" "vendor_name=fla_npu"
      "CMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}" "CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}"
      "CMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS} \"-ffile-prefix-map=${project}/=\"" "ASC_DIR=${FLA_CANN_ASC}"
      "ASCEND_CANN_PACKAGE_PATH=${FLA_CANN_HOME}" "ASCEND_PYTHON_EXECUTABLE=${Python3_EXECUTABLE}"
      "ASCEND_COMPUTE_UNIT=${FLA_SOCS}" "ENABLE_SOURCE_PACKAGE=OFF" "ENABLE_BINARY_PACKAGE=ON"
      "FLA_KERNEL_OPTIONS=${FLA_KERNEL_OPTIONS}" "FLA_BUILD_ID_SOURCE=${CMAKE_BINARY_DIR}/build_id.cpp")
    string(REGEX REPLACE "^([^=]+)=(.*)$" "set(\\1 [==[\\2]==] CACHE STRING \"\")\n" line "${option}")
    file(APPEND ${cann}/options.cmake "${line}")
  endforeach()
  # Makefiles: the toolkit's scripts pass $(MAKE) on.
  set(configure ${CMAKE_COMMAND} -G "Unix Makefiles" -C ${cann}/options.cmake -S ${project} -B ${cann}/build)
  # One target per step, each after the one before.
  add_custom_target(cann_start COMMAND ${CMAKE_COMMAND} -E rm -rf ${cann}/install ${cann}/log ${cann}/build/binary
    ${cann}/build/fla_kernels COMMENT "Building the OPP with the CANN toolkit at ${FLA_CANN_HOME}" VERBATIM)
  add_dependencies(cann_start fla_build_id)
  set(last cann_start)
  macro(fla_step name)
    string(REPLACE " " "_" step ${name})
    add_custom_target(cann_${step} COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/opp_package/step.py ${name}
      ${cann}/log/${step}.log "${names}" ${ARGN} COMMENT "CANN: ${name}" VERBATIM)
    add_dependencies(cann_${step} ${last})
    set(last cann_${step})
  endmacro()
  if(NOT FLA_CANN_ASC)   # what newer toolkits do inside npu_op_code_gen
    fla_step("configure" ${configure} -DFLA_STAGE=registrations)
    fla_step("registrations" ${CMAKE_COMMAND} --build ${cann}/build --target ascend_all_ops)
    fla_step("opbuild" ${CMAKE_COMMAND} --build ${cann}/build --target fla_opbuild)
  endif()
  fla_step("configure package" ${configure} -DFLA_STAGE=package)
  fla_step("host side" ${CMAKE_COMMAND} --build ${cann}/build)
  fla_step("kernels" ${CMAKE_COMMAND} --build ${cann}/build --target binary)
  fla_step("install" ${CMAKE_COMMAND} --install ${cann}/build)
  set_property(GLOBAL APPEND PROPERTY FLA_STEPS ${last})
endfunction()
