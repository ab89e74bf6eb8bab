//! Declares a replacement of a DataFusion function with the original name and types.

/// The naming and typing methods of a `ScalarUDFImpl`, delegated to the function in the field
/// `$of`.
macro_rules! declared_as {
    ($of:ident) => {
        fn name(&self) -> &str {
            self.$of.name()
        }

        fn aliases(&self) -> &[String] {
            self.$of.aliases()
        }

        fn signature(&self) -> &datafusion::logical_expr::Signature {
            self.$of.signature()
        }

        fn return_type(
            &self,
            types: &[arrow::datatypes::DataType],
        ) -> datafusion::common::Result<arrow::datatypes::DataType> {
            self.$of.return_type(types)
        }

        fn return_field_from_args(
            &self,
            args: datafusion::logical_expr::ReturnFieldArgs,
        ) -> datafusion::common::Result<arrow::datatypes::FieldRef> {
            self.$of.return_field_from_args(args)
        }
    };
}

pub(super) use declared_as;
