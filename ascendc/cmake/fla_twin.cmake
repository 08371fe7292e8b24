# SPDX-License-Identifier: Apache-2.0
# The twin backend: libfla_twin.so (machine, primitives, ACL), libcust_opapi.so (aclnn entries),
# libcust_opmaster_rt2.0.so (plans) and one kernel library per operator.
set(twin ${FLA_ASCENDC}/twin)
set(common ${FLA_ASCENDC}/common)
find_package(Threads REQUIRED)

add_compile_options(-Wall -Wextra -ffp-contract=off)   # only the primitives may fuse: the same bits on every processor
configure_file(${CMAKE_CURRENT_LIST_DIR}/exports.map ${CMAKE_BINARY_DIR}/exports.map COPYONLY)
add_link_options(-Wl,-Bsymbolic -Wl,-z,defs -Wl,--as-needed $<$<CONFIG:Release>:-s>
  -Wl,--version-script=exports.map)   # where ninja links: a whole path may hold a comma or a $
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_SKIP_RPATH OFF)

file(GLOB machine CONFIGURE_DEPENDS ${twin}/machine/*.cpp ${twin}/acl/*.cpp ${twin}/api/*.cpp)
add_library(fla_twin SHARED ${machine})
target_include_directories(fla_twin PRIVATE ${twin} ${twin}/include)
target_link_libraries(fla_twin PRIVATE twin_prims fla_build_id Threads::Threads ${CMAKE_DL_LIBS})

# The primitives, one table per instruction set; the library picks one when it is loaded.
add_subdirectory(twin/prims)

file(GLOB host CONFIGURE_DEPENDS ${common}/host/*.cpp ${common}/host/stages/*.cpp)
add_library(fla_host OBJECT ${host})
target_include_directories(fla_host PUBLIC ${common}/host ${common}/stages)

file(GLOB aclnn CONFIGURE_DEPENDS ${common}/aclnn/*.cpp)
add_library(cust_opapi SHARED ${aclnn})
target_include_directories(cust_opapi PRIVATE ${common}/aclnn ${twin} ${twin}/include)
list(GET FLA_SOCS 0 soc)   # the twin's kernels are the same for every chip and ship once
target_compile_definitions(cust_opapi PRIVATE FLA_SOC="${soc}" FLA_ARCH="${FLA_ARCH}")
target_link_libraries(cust_opapi PRIVATE fla_host fla_twin fla_build_id ${CMAKE_DL_LIBS})
# No SONAME: these are opened by path, and a name that another vendor's library has too must not match.
set_target_properties(cust_opapi PROPERTIES INSTALL_RPATH "$ORIGIN" NO_SONAME ON)

add_library(cust_opmaster SHARED)
target_link_libraries(cust_opmaster PRIVATE fla_host fla_build_id)
set_target_properties(cust_opmaster PROPERTIES OUTPUT_NAME cust_opmaster_rt2.0 NO_SONAME ON)

function(fla_add_op op op_type cores)
  set(dir ${FLA_ASCENDC}/ops/${op})
  set(generated ${FLA_GENERATED}/${op})
  target_sources(cust_opapi PRIVATE ${generated}/${op}_aclnn.cpp ${generated}/${op}_contract.cpp)
  target_include_directories(cust_opapi PRIVATE ${generated})

  file(GLOB plans CONFIGURE_DEPENDS ${dir}/op_host/*.cpp)
  target_sources(cust_opmaster PRIVATE ${plans} ${generated}/${op}_plan_entry.cpp)
  target_include_directories(cust_opmaster PRIVATE ${dir}/op_host ${dir}/op_kernel)

  add_library(kernel_${op} SHARED ${generated}/${op}_kernel_entry.cpp)
  target_include_directories(kernel_${op} PRIVATE ${twin})
  target_link_libraries(kernel_${op} PRIVATE fla_twin fla_build_id)
  set_target_properties(kernel_${op} PROPERTIES PREFIX "" OUTPUT_NAME ${op_type} NO_SONAME ON
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/kernels/${op}
    INSTALL_RPATH "$ORIGIN/../../../../../../op_api/lib")
  # The same source once per core type, as the device compiler does, and once per machine.
  foreach(core IN LISTS cores)
    string(TOUPPER ${core} CORE)
    foreach(machine fast checked)
      set(build ${op}_${machine}_${core})
      add_library(${build} OBJECT ${dir}/op_kernel/${op}.cpp)
      # Four builds of one source meet in one library. Their inline functions would share a symbol, and the
      # linker would keep one body for all: hence the kernels' namespace is renamed per build.
      target_compile_definitions(${build} PRIVATE TWIN_CORE=${CORE}
        TWIN_CHECKED=$<STREQUAL:${machine},checked> ${op}=${build} fla=fla_${build})
      target_compile_options(${build} PRIVATE -O2)
      target_include_directories(${build} PRIVATE ${twin}/include ${dir}/op_kernel ${common}/kernel ${common}/stages)
      target_link_libraries(kernel_${op} PRIVATE ${build})
    endforeach()
  endforeach()
  set_property(GLOBAL APPEND PROPERTY FLA_ARTIFACTS kernel_${op})
endfunction()

function(fla_finish)
  set_property(GLOBAL APPEND PROPERTY FLA_ARTIFACTS fla_twin cust_opapi cust_opmaster)
endfunction()
